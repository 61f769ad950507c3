"""An engine on a device of known speed: it finds out how fast that is, and keeps to what was asked for."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from python_backend.costs.step_cost import LearnedStepCost, StepCost
from python_backend.engine.engine import Engine
from python_backend.engine.request import GenerationRequest
from python_backend.engine.steps.cost_memory import CostMemory
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.tiers import Tier
from tests.fakes.executor import VOCABULARY
from tests.fakes.timed_executor import TimedExecutor, timed_engine

COST = StepCost(10, 0.5, 1.0, 0.2)
WHOLE = (16, 256)


def prompt(chance: random.Random, tokens: int) -> list[int]:
    return [chance.randrange(VOCABULARY) for _ in range(tokens)]


def work(engine: Engine, steps: int, tier: Tier = Tier.STANDARD, seed: int = 0) -> None:
    """Mixed requests, always a few at once."""
    chance = random.Random(seed)
    first = 1000 * (seed + 1)
    for number in range(steps):
        if number % 6 == 0:
            request = GenerationRequest(
                prompt(chance, chance.randint(5, 400)), chance.randint(5, 60), tier=tier
            )
            engine.add(first + number, request)
        engine.step()
    while engine.has_work:
        engine.step()


def learned(engine: Engine) -> LearnedStepCost:
    found = engine.gauges().learned
    assert found is not None
    return found


def limits(engine: Engine) -> tuple[int, int]:
    return engine.gauges().max_batch_size, engine.gauges().max_step_tokens


def engine_at_work(
    depth: int = 1, objectives: dict[Tier, float | None] | None = None
) -> tuple[Engine, TimedExecutor]:
    """It knows its cost, and has nothing to do."""
    engine, executor = timed_engine(COST, depth)
    work(engine, 200)
    engine.configure(inter_token_ms=objectives or {})
    executor.step_ms.clear()
    return engine, executor


@pytest.mark.parametrize("depth", [1, 2])
def test_the_engine_learns_the_cost_of_its_steps(depth: int) -> None:
    engine, _ = engine_at_work(depth)
    cost = learned(engine).cost
    assert learned(engine).error < 0.02
    assert cost.base_ms == pytest.approx(10, rel=0.05)
    assert cost.prefill_token_ms == pytest.approx(0.5, rel=0.05)
    assert cost.decode_sequence_ms == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("depth", [1, 2])
def test_busy_time_is_the_time_of_the_steps_and_not_of_idle_waits(depth: int) -> None:
    engine, executor = timed_engine(COST, depth)
    work(engine, 30)
    executor.clock.now_ns += 10**12
    work(engine, 30, seed=1)
    assert engine.gauges().busy_ns / 1e6 == pytest.approx(sum(executor.step_ms), rel=0.01)


def test_what_an_engine_does_between_two_steps_is_of_the_later_one_and_an_idle_wait_of_none() -> None:
    engine, executor = timed_engine(COST)
    for key in (1, 2):
        engine.add(key, GenerationRequest([1, 2, 3], 4))
        while engine.has_work:
            engine.step()
            executor.clock.now_ns += 3_000_000
        executor.clock.now_ns += 10**12
    assert engine.gauges().busy_ns / 1e6 == pytest.approx(sum(executor.step_ms) + 2 * 3 * 3, rel=0.01)


def test_nothing_is_counted_between_steps_that_failed_and_those_after_them() -> None:
    engine, executor = timed_engine(COST)
    engine.add(1, GenerationRequest([1, 2, 3], 4))
    engine.step()
    engine.abort("it failed")
    executor.clock.now_ns += 10**12
    work(engine, 1)
    assert engine.gauges().busy_ns / 1e6 == pytest.approx(sum(executor.step_ms), rel=0.01)


def test_a_few_steps_teach_no_cost() -> None:
    engine, _ = timed_engine(COST)
    engine.add(1, GenerationRequest([1, 2, 3], 20))
    for _ in range(20):
        engine.step()
    assert engine.gauges().learned is None


@pytest.mark.parametrize("depth", [1, 2])
def test_with_an_objective_a_long_prompt_delays_no_token_beyond_it(depth: int) -> None:
    engine, executor = engine_at_work(depth, {Tier.STANDARD: 60.0})
    chance = random.Random(9)
    engine.add(1, GenerationRequest(prompt(chance, 10), 60))
    for _ in range(3):
        engine.step()
    engine.add(2, GenerationRequest(prompt(chance, 1000), 5))
    executor.step_ms.clear()
    for _ in range(20):
        engine.step()
    assert 45 <= max(executor.step_ms) <= 60


def test_without_an_objective_the_engine_runs_whole_steps() -> None:
    engine, executor = engine_at_work()
    engine.add(1, GenerationRequest(prompt(random.Random(9), 1000), 5))
    engine.step()
    engine.step()
    assert max(executor.step_ms) > 130
    assert limits(engine) == WHOLE


def test_no_more_sequences_join_than_the_objective_allows() -> None:
    engine, executor = engine_at_work(objectives={Tier.STANDARD: 21.0})
    for key in range(12):
        engine.add(key, GenerationRequest([key, 1], 30))
    for _ in range(10):
        engine.step()
    assert 6 <= engine.gauges().running <= 8
    assert max(executor.step_ms[2:]) <= 20 + 16 * 0.5  # prompts that join go on by a few tokens all the same


def test_only_the_objectives_of_present_tiers_count_and_the_tightest_of_them() -> None:
    engine, _ = engine_at_work(objectives={Tier.INTERACTIVE: 15.0, Tier.STANDARD: None, Tier.BATCH: 40.0})

    def after_adding(key: int, tier: Tier) -> int:
        engine.add(key, GenerationRequest([key], 100, tier=tier))
        engine.step()
        engine.step()
        return engine.gauges().max_step_tokens

    whole, batch, interactive = (
        after_adding(key, tier) for key, tier in ((1, Tier.STANDARD), (2, Tier.BATCH), (3, Tier.INTERACTIVE))
    )
    assert whole == WHOLE[1] > batch > interactive
    engine.cancel(3)
    engine.step()
    engine.step()
    assert engine.gauges().max_step_tokens == pytest.approx(batch, abs=3)


def test_objectives_stay_within_the_configured_limits_which_return_without_them() -> None:
    engine, _ = engine_at_work(objectives={Tier.STANDARD: 1000.0})
    engine.configure(max_step_tokens=100, max_batch_size=4)
    engine.add(1, GenerationRequest([1], 100))
    for _ in range(3):
        engine.step()
    assert limits(engine) == (4, 100)
    engine.configure(inter_token_ms={Tier.STANDARD: 12.0})
    engine.step()
    assert limits(engine) < (4, 100)
    engine.configure(inter_token_ms={})
    assert limits(engine) == (4, 100)
    engine.configure(max_batch_size=8)
    assert limits(engine) == (8, 100)


@pytest.mark.parametrize("nonsense", [0.0, -1.0, float("nan"), float("inf")])
def test_an_invalid_objective_is_refused_and_changes_nothing(nonsense: float) -> None:
    engine, _ = timed_engine(COST)
    with pytest.raises(
        InflightError, match=r"inter_token_ms of batch is .*; allowed: a positive number"
    ) as raised:
        engine.configure(max_batch_size=2, inter_token_ms={Tier.BATCH: nonsense})
    assert raised.value.kind is ErrorKind.INVALID_REQUEST
    assert limits(engine) == WHOLE


def test_a_slowdown_makes_steps_smaller() -> None:
    engine, executor = engine_at_work(objectives={Tier.STANDARD: 60.0})
    work(engine, 200, seed=1)
    executor.cost = StepCost(20, 1.0, 2.0, 0.4)
    work(engine, 300, seed=2)
    assert learned(engine).cost.base_ms == pytest.approx(20, rel=0.15)
    executor.step_ms.clear()
    engine.add(1, GenerationRequest([1], 100))
    engine.step()
    engine.add(2, GenerationRequest(prompt(random.Random(9), 1000), 5))
    for _ in range(10):
        engine.step()
    assert max(executor.step_ms[2:]) <= 62


def burst(engine: Engine, count: int, steps: int, tenant: str = "flood") -> None:
    for number in range(count):
        request = GenerationRequest([number % VOCABULARY] * 20, 100, tenant=tenant, weight=1.0)
        engine.add(number, request)
    for _ in range(steps):
        engine.step()


def test_the_first_burst_keeps_the_objective_though_nothing_is_known_yet() -> None:
    engine, executor = timed_engine(StepCost(5, 1.2, 8, 0), max_batch_size=64)
    engine.configure(inter_token_ms={Tier.STANDARD: 150.0})
    assert limits(engine)[0] == 8
    burst(engine, 40, 120)
    # The first step computes prompts alone: nobody waits for a token yet.
    late = sum(took_ms > 150.0 for took_ms in executor.step_ms[1:])
    assert late <= 0.05 * len(executor.step_ms)
    assert engine.gauges().running >= 12


def test_an_engine_that_is_started_again_knows_what_its_steps_cost(tmp_path: Path) -> None:
    cost = StepCost(5, 1.2, 8, 0)
    engine, _ = timed_engine(cost, max_batch_size=64, memory=CostMemory(tmp_path, "release"))
    work(engine, 400)
    engine.gauges()
    again, _ = timed_engine(cost, max_batch_size=64, memory=CostMemory(tmp_path, "release"))
    again.configure(inter_token_ms={Tier.STANDARD: 150.0})
    assert limits(again)[0] == pytest.approx(14, abs=1)
    assert again.gauges().learned is None, "nobody is refused by what a run before has seen"
    work(again, 400)
    assert learned(again).cost.decode_sequence_ms == pytest.approx(8, rel=0.1)


def test_beside_a_calm_tenant_the_batch_of_a_flood_shrinks_by_pausing_and_grows_again() -> None:
    engine, executor = timed_engine(StepCost(5, 1.2, 8, 0), max_batch_size=64)
    work(engine, 300)
    engine.configure(inter_token_ms={Tier.STANDARD: 150.0})
    burst(engine, 20, 12)
    before = engine.gauges()
    engine.add(500, GenerationRequest([1] * 10, 16, tenant="calm", weight=1.0))
    began_ns = executor.clock.now_ns
    ended = False
    while not ended:
        ended = any(event.key == 500 and event.is_last for event in engine.step())
    beside = engine.gauges()
    assert before.paused == 0
    assert beside.paused > 0
    assert beside.running < before.running
    alone_ms = (5 + 10 * 1.2) + 15 * (5 + 8)
    assert (executor.clock.now_ns - began_ns) / 1e6 < 3.5 * alone_ms  # of which one step is of all
    while engine.has_work:
        engine.step()
    assert engine.gauges().paused == 0
