"""The GPU's engine against transformers: whatever happens to a sequence, its answer is the same."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from python_backend.engine.config import EngineConfig
from python_backend.engine.cuda.decoder import CudaDecoder
from python_backend.engine.cuda.sampler import Sampler
from python_backend.engine.cuda.step import StepRows
from python_backend.engine.engine import Engine
from python_backend.engine.report import FinishReason, SequenceEvent
from python_backend.engine.request import GenerationRequest, Guide, SamplingParams
from python_backend.wire.errors import InflightError
from python_backend.wire.tiers import Tier
from tests.engine.checkpoints import all_logits, greedy_choices, random_llama, save
from tests.engine.cuda.engines import build_cuda_engine
from tests.engine.drained import answers_of, drain, events_of
from tests.fakes.guides import FakeGuide, Pace, bits_of, only

VOCABULARY = 64
PROMPT = [3, 14, 15, 9, 26, 5, 35, 8, 9]

Build = Callable[..., Engine]

pytestmark = pytest.mark.usefixtures("few_programs")


@pytest.fixture(scope="module")
def model() -> Any:
    """One layer: this is about what happens around the model."""
    tiny = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 1}
    return random_llama(num_attention_heads=2, num_key_value_heads=1, **tiny)


@pytest.fixture(scope="module")
def build(model: Any, device: str, tmp_path_factory: pytest.TempPathFactory) -> Build:
    config = EngineConfig(
        str(save(model, tmp_path_factory.mktemp("tiny"))),
        max_tokens_in_kv_cache=64,
        tokens_per_block=4,
        max_batch_size=3,
        max_step_tokens=12,
        check_blocks=True,
        precision="fp32",
        device=device,
    )

    def build(compiler: Any = None, **changes: Any) -> Engine:
        return build_cuda_engine(replace(config, **changes), device, compiler)

    return build


def test_sequences_of_one_request_share_its_prompt_and_not_its_last_block(build: Build, model: Any) -> None:
    """The prompt ends within a block, into which each of them then writes its own answer."""
    engine = build()
    greedy = GenerationRequest(PROMPT, 2, num_return_sequences=2)
    drawn = SamplingParams(temperature=2.0, top_p=1.0, seed=5)
    engine.add(0, greedy)
    answers = answers_of(engine)
    for index in range(2):
        answer, end = answers[0, index]
        assert answer == greedy_choices(model, PROMPT, answer)
        assert end is FinishReason.LENGTH
    engine.add(1, replace(greedy, sampling=drawn))
    together = answers_of(engine)
    assert together[1, 0] != together[1, 1]
    engine.add(1, replace(greedy, sampling=drawn, num_return_sequences=1))
    assert answers_of(engine)[1, 0] == together[1, 0]


def test_a_preempted_sequence_continues_where_it_was(build: Build, model: Any) -> None:
    engine = build(max_tokens_in_kv_cache=20, guaranteed_no_evict=False)
    prompts = [[7, 8, 9], [1, 2, 3], [40, 41, 42]]
    for key, prompt in enumerate(prompts):
        engine.add(key, GenerationRequest(prompt, 6))
    for key, (answer, _) in drain(engine).items():
        assert len(answer) == 6
        assert answer == greedy_choices(model, prompts[key], answer)
    assert engine.gauges().preemptions > 0


def test_what_left_for_the_host_comes_back_and_is_what_it_was(build: Build, model: Any) -> None:
    engine = build(max_tokens_in_kv_cache=32, host_cache_bytes=1 << 20)
    prompts = {0: [*PROMPT, *PROMPT], 1: [40] * 26, 2: [41] * 26}
    for key, prompt in prompts.items():
        engine.add(key, GenerationRequest(prompt, 2))
        answer, _ = drain(engine)[key]
        assert answer == greedy_choices(model, prompt, answer)
    engine.add(3, GenerationRequest([*prompts[0], 7], 4))
    answer, _ = drain(engine)[3]
    assert answer == greedy_choices(model, [*prompts[0], 7], answer)
    assert engine.gauges().recalled_blocks >= 4


def test_a_preempted_sequence_gets_its_slot_back_with_its_sampling_state(build: Build, model: Any) -> None:
    """The urgent one takes the only place; whoever returns to it is penalized as before."""
    engine = build(max_batch_size=1)
    banned = greedy_choices(model, PROMPT, [0])[0]
    penalized = SamplingParams(frequency_penalty=100.0)
    engine.add(0, GenerationRequest(PROMPT, 4, sampling=penalized, token_bias={banned: -100.0}))
    expected = drain(engine)[0][0]
    assert len(set(expected)) == 4
    engine.add(0, GenerationRequest(PROMPT, 4, sampling=penalized, token_bias={banned: -100.0}))
    told = [event for _ in range(3) for event in engine.step()]
    engine.add(1, GenerationRequest([1], 1, tier=Tier.INTERACTIVE))
    told += events_of(engine)
    assert [token for event in told if event.key == 0 for token in event.token_ids] == expected
    assert engine.gauges().preemptions == 1


def test_logits_and_log_probs_are_those_of_transformers(build: Build, model: Any) -> None:
    """Asked by one of two, whose prompt takes two steps."""
    engine = build(max_step_tokens=6)
    engine.add(0, GenerationRequest([4, 5], 3))
    engine.add(
        1,
        GenerationRequest(
            PROMPT,
            3,
            returns_log_probs=True,
            returns_context_logits=True,
            returns_generation_logits=True,
            top_log_probs=4,
        ),
    )
    events = events_of(engine)
    assert all(event.log_probs is None for event in events if event.key == 0)
    mine = [event for event in events if event.key == 1 and event.token_ids]
    answer = [token for event in mine for token in event.token_ids]
    logits = all_logits(model, [*PROMPT, *answer[:-1]])
    context = rows(mine[0].context_logits)
    np.testing.assert_allclose(context, logits[: len(PROMPT)].numpy(), atol=1e-4)
    generation = np.concatenate([rows(event.generation_logits) for event in mine])
    np.testing.assert_allclose(generation, logits[len(PROMPT) - 1 :].numpy(), atol=1e-4)
    log_probs = [number for event in mine for number in event.log_probs or []]
    expected = logits[len(PROMPT) - 1 :].log_softmax(-1)[range(3), answer]
    np.testing.assert_allclose(log_probs, expected.numpy(), atol=1e-4)
    top = [pairs for event in mine for pairs in event.top_log_probs or []]
    likeliest = logits[len(PROMPT) - 1 :].log_softmax(-1).topk(4)
    assert [[token_id for token_id, _ in pairs] for pairs in top] == [
        [token_id, *ids] for token_id, ids in zip(answer, likeliest.indices.tolist(), strict=True)
    ]
    np.testing.assert_allclose(
        [[number for _, number in pairs[1:]] for pairs in top], likeliest.values, atol=1e-4
    )
    np.testing.assert_allclose([pairs[0][1] for pairs in top], expected.numpy(), atol=1e-4)


def test_log_probs_of_a_prompt_are_those_of_transformers(build: Build, model: Any) -> None:
    """Asked by one of two, whose prompt takes two steps, and by nobody of a prompt of one token."""
    engine = build(max_step_tokens=6)
    engine.add(0, GenerationRequest([4, 5], 3))
    engine.add(1, GenerationRequest(PROMPT, 1, top_log_probs=2, returns_prompt_log_probs=True))
    engine.add(2, GenerationRequest([7], 1, top_log_probs=2, returns_prompt_log_probs=True))
    events = {event.key: event for event in events_of(engine) if event.top_log_probs}
    assert events.keys() == {1, 2}
    assert len(events[2].top_log_probs or ()) == 1
    rows = events[1].top_log_probs or []
    following = [*PROMPT[1:], *events[1].token_ids]
    expected = all_logits(model, PROMPT).log_softmax(-1)
    likeliest = expected.topk(2).indices.tolist()
    assert [[token_id for token_id, _ in row] for row in rows] == [
        [token_id, *ids] for token_id, ids in zip(following, likeliest, strict=True)
    ]
    for row, log_probs in zip(rows, expected.tolist(), strict=True):
        for token_id, log_prob in row:
            assert log_prob == pytest.approx(log_probs[token_id], abs=1e-4)


@pytest.mark.parametrize("prompt", [[7], PROMPT])
def test_context_logits_are_whole_when_the_last_chunk_of_a_prompt_is_one_token(
    build: Build, model: Any, prompt: list[int]
) -> None:
    engine = build(max_batch_size=1, max_step_tokens=4)
    engine.add(0, GenerationRequest(prompt, 2, returns_context_logits=True))
    first = next(event for event in events_of(engine) if event.token_ids)
    expected = all_logits(model, prompt).numpy()
    np.testing.assert_allclose(rows(first.context_logits), expected, atol=1e-4)


def test_a_newcomer_with_one_token_of_budget_changes_no_answer(build: Build, model: Any) -> None:
    """A step of single rows, one of which yields nothing."""
    engine = build(max_batch_size=3, max_step_tokens=3)
    prompts = {0: [4], 1: [5], 2: PROMPT}
    for key, prompt in prompts.items():
        engine.add(key, GenerationRequest(prompt, 4))
    for key, (answer, _) in drain(engine).items():
        assert answer == greedy_choices(model, prompts[key], answer)


def test_padding_rows_change_no_answer(build: Build, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are loaded for the sizes of graphs alone; one of the prompts' logits are asked for besides."""
    engine = build(max_batch_size=12, max_step_tokens=64)
    forward, sizes = CudaDecoder.forward, []

    def note(self: CudaDecoder, rows: StepRows, *others: Any) -> Any:
        sizes.append(None if rows.wanted_rows is None else len(rows.wanted_rows))
        return forward(self, rows, *others)

    monkeypatch.setattr(CudaDecoder, "forward", note)
    prompts = [[number, *PROMPT[:number]] for number in range(1, 6)]
    for key, prompt in enumerate(prompts):
        engine.add(key, GenerationRequest(prompt, 3))
    told = engine.step()
    engine.add(5, GenerationRequest(PROMPT, 3, returns_context_logits=True))
    prompts.append(PROMPT)
    told += events_of(engine)
    assert not sizes or sizes[0] == 8, "a GPU replays steps that were recorded before"
    for key, prompt in enumerate(prompts):
        answer = [token for event in told if event.key == key for token in event.token_ids]
        assert len(answer) == 3
        assert answer == greedy_choices(model, prompt, answer)
    logits = next(event.context_logits for event in told if event.key == 5 and event.token_ids)
    np.testing.assert_allclose(rows(logits), all_logits(model, PROMPT).numpy(), atol=1e-4)


def test_a_launch_that_failed_half_way_leaves_nothing_for_the_next_try(
    build: Build, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build()
    penalized = SamplingParams(frequency_penalty=100.0)
    engine.add(0, GenerationRequest(PROMPT, 4, sampling=penalized))
    expected = drain(engine)[0][0]
    whole = Sampler.choose
    calls = 0

    def choose(self: Sampler, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        found = whole(self, *arguments)
        if calls == 3:  # the token is counted, and then something breaks
            raise MemoryError("no room")
        return found

    monkeypatch.setattr(Sampler, "choose", choose)
    engine.add(0, GenerationRequest(PROMPT, 4, sampling=penalized))
    engine.add(1, GenerationRequest([4, 5], 4))
    answers = drain(engine)
    assert calls > 3
    assert answers[0] == (expected, FinishReason.LENGTH)
    assert answers[1][0] == greedy_choices(model, [4, 5], answers[1][0])


def test_limits_above_those_of_the_start_are_refused(build: Build) -> None:
    engine = build()
    with pytest.raises(
        InflightError, match="max_batch_size is 4; allowed: up to 3, the value the engine was"
    ):
        engine.configure(max_batch_size=4)
    with pytest.raises(InflightError, match="max_step_tokens is 13; allowed: up to 12"):
        engine.configure(max_step_tokens=13)
    engine.configure(max_batch_size=1, max_step_tokens=2)


def rows(logits: bytes | None) -> NDArray[np.float32]:
    assert logits is not None
    return np.frombuffer(logits, np.float32).reshape(-1, VOCABULARY)


def test_a_prompt_cached_except_for_one_token_is_a_step_of_one_row(build: Build, model: Any) -> None:
    """That row's token is in the request; the device did not choose it."""
    engine = build()
    for reused in (0, 2):
        engine.add(0, GenerationRequest(PROMPT, 2))
        events = events_of(engine)
        answer = [token for event in events for token in event.token_ids]
        assert answer == greedy_choices(model, PROMPT, answer)
        perf = events[-1].perf
        assert perf is not None
        assert perf.reused_blocks == reused


def test_a_cancel_while_a_step_runs_changes_no_other_answer(build: Build, model: Any) -> None:
    engine = build(max_batch_size=2)
    engine.add(0, GenerationRequest(PROMPT, 6))
    engine.add(1, GenerationRequest([4, 5], 5))
    told: list[SequenceEvent] = engine.step()
    engine.cancel(0)
    engine.add(2, GenerationRequest([6, 7, 8], 4))  # into the place that gets free
    told += events_of(engine)
    assert [event.finish_reason for event in told if event.key == 0] == [FinishReason.CANCELLED]
    for key, prompt in {1: [4, 5], 2: [6, 7, 8]}.items():
        answer = [token for event in told if event.key == key for token in event.token_ids]
        assert answer == greedy_choices(model, prompt, answer)
    assert engine.pool.used_blocks == 0


class OneAnswer(FakeGuide):
    def bits(self, end_id: int | None) -> NDArray[np.uint32]:
        return bits_of(self.next_token(), VOCABULARY)

    def fork(self) -> OneAnswer:
        return OneAnswer(self._answer, self._pace, self._taken)


class ReadyCompiler:
    def __init__(self) -> None:
        self.pace = Pace()

    def compile(self, guide: Guide, owner: str, tenant: str = "") -> Future[OneAnswer]:
        future: Future[OneAnswer] = Future()
        future.set_result(OneAnswer([int(token_id) for token_id in guide.text.split()], self.pace))
        return future

    def follow(self) -> None:
        """They know at once."""


def test_a_guided_answer_follows_its_guide_and_its_neighbours_are_unchanged(build: Build, model: Any) -> None:
    engine = build(ReadyCompiler())
    engine.add(0, GenerationRequest(PROMPT, 9, guide=only(11, 50, 33)))
    engine.add(1, GenerationRequest([4, 5], 4))
    answers = drain(engine)
    assert answers[0] == ([11, 50, 33], FinishReason.STOP_WORDS)
    assert answers[1][0] == greedy_choices(model, [4, 5], answers[1][0])


def test_answers_stay_the_same_when_guides_are_late_and_others_come_and_go(
    build: Build, thorough: bool
) -> None:
    for seed in range(3 if thorough else 1):
        check_answers_beside_late_guides(build, seed)


def check_answers_beside_late_guides(build: Build, seed: int) -> None:
    """Beside a guide: penalties, words of two tokens that must not come, and one that is preempted."""
    penalized = SamplingParams(temperature=1.5, top_p=0.9, frequency_penalty=3.0, seed=4)
    requests = {
        0: GenerationRequest(PROMPT, 9, guide=only(11, 50, 33, 11, 50, 33)),
        1: GenerationRequest([4, 5], 7, sampling=penalized),
        2: GenerationRequest([6], 7, bad_sequences=((7, 8), (9, 10, 11)), tier=Tier.BATCH),
        3: GenerationRequest([8, 9], 5, guide=only(20, 21, 22, 23, 24, 25), sampling=penalized),
    }
    alone: dict[int, tuple[list[int], FinishReason | None]] = {}
    for key, request in requests.items():
        engine = build(ReadyCompiler())
        engine.add(key, request)
        alone |= drain(engine)
    dice, compiler = Random(seed), ReadyCompiler()
    engine = build(compiler, max_tokens_in_kv_cache=32, guaranteed_no_evict=False)
    told: dict[int, list[int]] = {key: [] for key in requests}
    for key, request in requests.items():
        engine.add(key, request)
        for _ in range(dice.randrange(4)):
            compiler.pace.is_ready = dice.random() < 0.5
            for event in engine.step():
                told[event.key] += event.token_ids
    while engine.has_work:
        compiler.pace.is_ready = dice.random() < 0.5
        for event in engine.step():
            told[event.key] += event.token_ids
    assert told == {key: answer for key, (answer, _) in alone.items()}
    assert told[0] == [11, 50, 33, 11, 50, 33]
    assert told[3] == [20, 21, 22, 23, 24]
    assert engine.pool.used_blocks == 0
