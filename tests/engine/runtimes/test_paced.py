"""The engine without a model: its steps take the time that they are told to, and its answers are whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from python_backend.costs.step_cost import StepCost, StepShape
from python_backend.engine.config import EngineConfig, EngineLimits
from python_backend.engine.engine import Engine
from python_backend.engine.kv.blocks import BlockPool
from python_backend.engine.process.handle import EngineProcess
from python_backend.engine.process.messages import Progress
from python_backend.engine.report import Gauges, SequenceEvent
from python_backend.engine.request import GenerationRequest
from python_backend.engine.runtimes.paced import PacedExecutor, load_paced
from python_backend.engine.scheduling.plan import Chunk
from python_backend.engine.sequence import Sequence
from python_backend.wire.parameters import EngineParameters, parse_engine_parameters

COST = StepCost(10, 0.1, 1, 100)


class Clock:
    """Time passes while someone sleeps, and a millisecond with each look."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        self.now_s += 0.001
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


def parameters(**more: str) -> EngineParameters:
    given = {"inflight_runtime": "paced", "inflight_paced_cost": "0.1,0,0,0", **more}
    return parse_engine_parameters(
        {"gpt_model_type": "inflight_fused_batching", "gpt_model_path": "-", **given}
    )


def chunk(start: int, count: int) -> Chunk:
    return Chunk(Sequence(1, 1, GenerationRequest([7] * 5, 100), 100), start, count, True)


def all_events(runtime: Engine) -> Iterator[SequenceEvent]:
    while runtime.has_work:
        yield from runtime.step()


def answers(runtime: Engine) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for event in all_events(runtime):
        found.setdefault(event.key, []).extend(event.token_ids)
    return found


def test_paced_steps_end_one_after_the_other_after_their_cost() -> None:
    clock = Clock()
    executor = PacedExecutor(COST, now_s=clock, sleep=clock.sleep)
    began_s = clock.now_s + 0.001
    ends_s = []
    first = executor.launch([chunk(0, 5)], [])  # 10 + 0.5 ms
    second = executor.launch([chunk(5, 1)], [])  # 10 + 1 + 0.5 ms
    for step in (first, second):
        step.results()
        ends_s.append(clock.now_s - began_s)
    assert ends_s == pytest.approx([0.0105, 0.022])
    clock.now_s += 1
    later_s = clock.now_s + 0.001
    executor.launch([chunk(0, 5)], []).results()
    assert clock.now_s - later_s == pytest.approx(0.0105), "what it did not do before is not made up for"


def test_a_step_that_is_already_over_does_not_sleep() -> None:
    clock = Clock()
    step = PacedExecutor(COST, now_s=clock, sleep=clock.sleep).launch([chunk(0, 5)], [])
    clock.now_s += 1
    step.results()
    assert clock.slept == []


def test_noise_is_the_same_for_the_same_seed() -> None:
    def times(seed: int) -> list[float]:
        clock = Clock()
        executor = PacedExecutor(COST, noise=0.5, seed=seed, now_s=clock, sleep=clock.sleep)
        for _ in range(20):
            executor.launch([chunk(5, 1)], []).results()
        return clock.slept

    assert times(1) == times(1) != times(2)
    assert len({round(slept, 6) for slept in times(1)}) == 20
    assert min(times(1)) >= 0


def test_every_answer_is_whole_and_its_tokens_are_distinguishable() -> None:
    runtime = load_paced(parameters(inflight_max_batch_size="4", inflight_max_step_tokens="8"))
    for key in range(10):
        runtime.add(key, GenerationRequest([7] * (1 + 3 * key), 60), 0)
    expected = [500 + position % 50 for position in range(60)]
    assert answers(runtime) == dict.fromkeys(range(10), expected)


def test_an_answer_never_contains_its_end_token() -> None:
    runtime = load_paced(parameters())
    runtime.add(1, GenerationRequest([7], 5, end_id=502), 0)
    assert answers(runtime) == {1: [500, 501, 550, 503, 504]}


@pytest.mark.parametrize(
    "request_",
    [
        GenerationRequest([7], 5, returns_log_probs=True),
        GenerationRequest([7], 5, top_log_probs=2),
        GenerationRequest([7], 5, returns_generation_logits=True),
        GenerationRequest([7], 5, returns_context_logits=True),
    ],
)
def test_scores_are_refused_by_the_paced_runtime(request_: GenerationRequest) -> None:
    runtime = load_paced(parameters())
    runtime.add(1, request_, 0)
    errors = [event.error for event in all_events(runtime)]
    assert errors == ["unsupported: this engine computes nothing, so it has neither scores nor probabilities"]


def test_the_paced_runtimes_size_comes_from_the_config() -> None:
    told = load_paced(
        parameters(
            max_tokens_in_paged_kv_cache="1600",
            inflight_max_batch_size="7",
            inflight_max_step_tokens="99",
            inflight_max_sequence_tokens="800",
        )
    ).describe()
    assert (told.total_blocks, told.tokens_per_block, told.max_sequence_tokens) == (100, 16, 800)
    assert (told.max_batch_size, told.max_step_tokens) == (7, 99)
    assert load_paced(parameters(max_tokens_in_paged_kv_cache="64")).describe().max_sequence_tokens == 64
    like_a_gpu = load_paced(parameters(inflight_device="cuda")).describe()
    assert (like_a_gpu.max_batch_size, like_a_gpu.max_step_tokens, like_a_gpu.tokens_per_block) == (
        512,
        4096,
        64,
    )


def test_an_engine_on_the_paced_runtime_learns_the_pace() -> None:
    clock, cost = Clock(), StepCost(20, 0.2, 1, 0)
    pool = BlockPool(500, 16)
    engine = Engine(
        EngineConfig("", max_batch_size=8, max_step_tokens=64),
        EngineLimits(1000, 1000),
        pool,
        PacedExecutor(cost, now_s=clock, sleep=clock.sleep),
        now_ns=lambda: round(clock.now_s * 1e9),
    )
    for key in range(60):
        engine.add(key, GenerationRequest([key] * (7 * key % 90 + 1), 10 + key % 7))
    while engine.has_work:
        engine.step()
    learned = engine.gauges().learned
    assert learned is not None
    for shape in (StepShape(0, 8, 400), StepShape(56, 4, 200)):
        assert learned.cost.step_ms(shape) == pytest.approx(cost.step_ms(shape), rel=0.1)
    assert engine.gauges().busy_ns / 1e9 == pytest.approx(sum(clock.slept), rel=0.1)


def test_a_paced_engine_process_reports_its_learned_cost() -> None:
    engine = EngineProcess(parameters(inflight_paced_cost="4,0.1,0.5,0", stats_check_period_ms="20"))
    try:
        engine.wait_until_ready()
        for key in range(6):
            engine.submit(key, GenerationRequest([7] * (20 * key + 1), 30 + 20 * key), 0)
        gauges, open_keys = Gauges(0, 0, 0, 0, 0, 0, 0, 1, 0), set(range(6))
        while open_keys or gauges.active:
            assert engine.has_report(10)
            report = engine.receive()
            assert isinstance(report, Progress)
            gauges = report.gauges or gauges
            open_keys -= {event.key for event in report.events if event.is_last}
    finally:
        engine.stop()
    assert gauges.learned is not None
    assert gauges.learned.samples >= 32
    assert gauges.busy_ns > gauges.step_count * 4_000_000, "no step was shorter than that"
