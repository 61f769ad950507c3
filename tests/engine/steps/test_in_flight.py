"""An executor that lets two steps be under way: nothing changes but when things are told."""

from __future__ import annotations

from typing import Any

import pytest

from python_backend.engine.engine import Engine
from python_backend.engine.report import EngineBroken, FinishReason
from python_backend.engine.request import GenerationRequest, SamplingParams
from python_backend.wire.tiers import Tier
from tests.engine.drained import answers_of, drain, events_of
from tests.fakes.executor import FakeExecutor, continuation, fake_engine
from tests.fakes.guides import FakeCompiler, only

DEADLY = 13


def test_the_next_step_is_launched_before_the_last_steps_tokens_are_reported() -> None:
    engine, executor = fake_engine(depth=2)
    engine.add(1, GenerationRequest([1, 2, 3], 3))
    answer = continuation([1, 2, 3], 3)
    told, launched, collected = [], [], []
    while engine.has_work:
        assert engine.can_step
        told.append([token_id for event in engine.step() for token_id in event.token_ids])
        launched.append(len(executor.steps))
        collected.append(executor.collected_steps)
    assert told == [[], answer[:1], answer[1:2], answer[2:]]
    assert launched == [1, 2, 3, 3]
    assert collected == [0, 1, 2, 3]
    assert engine.gauges().step_count == 3


def test_an_unforeseen_end_costs_one_row_that_is_dropped() -> None:
    engine, executor = fake_engine(depth=2)
    answer = continuation([1, 2], 6)
    engine.add(1, GenerationRequest([1, 2], 6, end_id=answer[3]))
    engine.add(2, GenerationRequest([1, 2], 6, stop_sequences=((answer[2], answer[3]),)))
    assert drain(engine) == {
        1: (answer[:3], FinishReason.END_ID),
        2: (answer[:4], FinishReason.STOP_WORDS),
    }
    assert executor.computed_tokens == 2 * (2 + 4)
    assert engine.pool.used_blocks == 0


def test_a_cancel_ends_a_sequence_whose_step_is_running() -> None:
    engine, executor = fake_engine(depth=2)
    engine.add(1, GenerationRequest([1] * 10, 100))
    engine.step()
    engine.step()
    engine.cancel(1)
    assert [(event.token_ids, event.finish_reason) for event in engine.step()] == [
        ([], FinishReason.CANCELLED)
    ]
    assert not engine.has_work
    assert executor.collected_steps == len(executor.steps)
    assert engine.pool.used_blocks == 0


def test_a_sequence_preempted_while_its_token_is_coming_continues_after_that_token() -> None:
    engine, executor = fake_engine(depth=2, max_batch_size=1)
    engine.add(1, GenerationRequest([1, 2, 3, 4, 5], 6, tier=Tier.BATCH))
    engine.step()
    engine.step()
    engine.add(2, GenerationRequest([2], 1, tier=Tier.INTERACTIVE))
    answers = drain(engine)
    assert answers[1] == (continuation([1, 2, 3, 4, 5], 6)[1:], FinishReason.LENGTH)
    assert answers[2] == (continuation([2], 1), FinishReason.LENGTH)
    assert engine.gauges().preemptions == 1
    assert [sequence.key for sequence in executor.released] == [1, 2, 1]


def test_growth_that_empties_the_pool_changes_no_answer() -> None:
    engine, _ = fake_engine(depth=2, total_blocks=6, tokens_per_block=4)
    for key in range(3):
        engine.add(key, GenerationRequest([key] * 3, 18))
    answers = drain(engine)
    assert engine.gauges().preemptions > 0
    assert answers == {key: (continuation([key] * 3, 18), FinishReason.LENGTH) for key in range(3)}


def test_a_sequence_that_ends_is_released_once_even_if_it_never_ran() -> None:
    for depth in (1, 2):
        engine, executor = fake_engine(depth=depth, max_batch_size=2)
        for key in range(4):
            engine.add(key, GenerationRequest([key], 3))
        engine.step()
        engine.cancel(3)  # which waits
        drain(engine)
        assert sorted(sequence.key for sequence in executor.released) == [0, 1, 2, 3]
        assert not executor.last_tokens


@pytest.mark.parametrize("max_step_tokens", [16, 1024])
def test_tokens_being_computed_are_not_computed_again(max_step_tokens: int) -> None:
    engine, executor = fake_engine(
        depth=2, total_blocks=2000, max_batch_size=16, max_step_tokens=max_step_tokens
    )
    for key in range(50):
        engine.add(key, GenerationRequest([7] * 40 + [key], 3))
    assert drain(engine) == {
        key: (continuation([7] * 40 + [key], 3), FinishReason.LENGTH) for key in range(50)
    }
    assert executor.computed_tokens == 40 + 50 * 3


@pytest.mark.parametrize("prompt_tokens", [1, 4, 5, 7, 8, 9])
def test_several_sequences_of_one_request_compute_its_prompt_once(prompt_tokens: int) -> None:
    engine, executor = fake_engine(depth=2)
    prompt = list(range(prompt_tokens))
    engine.add(1, GenerationRequest(prompt, 6, num_return_sequences=3, sampling=SamplingParams(seed=5)))
    assert answers_of(engine) == {
        (1, index): (continuation(prompt, 6, 5, index), FinishReason.LENGTH) for index in range(3)
    }
    assert executor.computed_tokens == (prompt_tokens - 1) + 3 * 6


def test_a_guide_knows_the_last_token_before_the_next_is_chosen() -> None:
    compiler = FakeCompiler()
    engine, _ = fake_engine(depth=2, compiler=compiler)
    engine.add(1, GenerationRequest([1], 9, guide=only(5, 6, 7)))
    engine.add(2, GenerationRequest([2], 6))
    compiler.finish()
    answers = drain(engine)
    assert answers[1] == ([5, 6, 7], FinishReason.STOP_WORDS)
    assert answers[2] == (continuation([2], 6), FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("request_", "needs_history"),
    [
        (GenerationRequest([1], 4), False),
        (GenerationRequest([1], 4, bad_sequences=((1,), (2,))), False),
        (GenerationRequest([1], 4, bad_sequences=((1,), (2, 3))), True),
        (GenerationRequest([1], 4, sampling=SamplingParams(top_p=0.9, top_p_decay=0.5)), False),
        (
            GenerationRequest([1], 4, sampling=SamplingParams(top_p=0.9, top_p_decay=0.5, top_p_reset_id=3)),
            True,
        ),
        (
            GenerationRequest([1], 4, sampling=SamplingParams(top_k=1, top_p_decay=0.5, top_p_reset_id=3)),
            False,
        ),
        (GenerationRequest([1], 4, sampling=SamplingParams(repetition_penalty=2, min_tokens=3)), False),
    ],
)
def test_steps_overlap_and_only_the_choice_waits_where_a_rule_looks_at_the_last_tokens(
    request_: GenerationRequest, needs_history: bool
) -> None:
    engine, executor = fake_engine(depth=2)
    engine.add(1, request_)
    engine.step()
    engine.step()
    for launched in (2, 3):
        assert (len(executor.steps), executor.collected_steps) == (launched, launched - 1)
        if needs_history:
            assert executor.choices == launched - 1
            assert engine.spare_s == 0
            engine.step()
        assert (len(executor.steps), executor.collected_steps) == (launched, launched - 1)
        assert executor.choices == launched
        if launched == 2:
            engine.step()
    (sequence,) = {chunk.sequence for chunks in executor.steps for chunk in chunks}
    assert sequence.needs_history is needs_history
    assert sequence.coming_tokens == 1
    assert drain(engine)[1][0] == continuation([1], 4)[2:]


@pytest.mark.parametrize("culprits", [{0}, {7}, {2, 5}, set(range(8))])
def test_a_launch_that_raises_fails_only_for_the_sequences_that_cause_it(culprits: set[int]) -> None:
    engine, _ = fake_engine(depth=2, deadly_token=DEADLY, max_batch_size=16)
    engine.add(100, GenerationRequest([50], 4))
    engine.add(101, GenerationRequest([51], 2))
    engine.step()
    engine.step()  # 101 ends with what is under way now
    for key in range(8):
        engine.add(key, GenerationRequest([DEADLY if key in culprits else 1, key, 3], 4))
    answers = drain(engine)
    assert {key for key, (_, end) in answers.items() if end is FinishReason.ERROR} == culprits
    for key in set(range(8)) - culprits:
        assert answers[key] == (continuation([1, key, 3], 4), FinishReason.LENGTH)
    assert answers[100] == (continuation([50], 4)[1:], FinishReason.LENGTH)
    assert answers[101] == (continuation([51], 2)[1:], FinishReason.LENGTH)


def test_a_launch_that_is_too_large_beside_another_is_made_when_that_is_over() -> None:
    engine, executor = fake_engine(depth=2)
    for key in range(2):
        engine.add(key, GenerationRequest([key] * 3, 4))
    engine.step()
    executor.fail_next = True
    assert drain(engine) == {key: (continuation([key] * 3, 4), FinishReason.LENGTH) for key in range(2)}
    assert executor.collected_steps == len(executor.steps)


@pytest.mark.parametrize("launch_fails", [False, True])
def test_lost_results_break_the_engine_and_every_sequence_ends_once(launch_fails: bool) -> None:
    engine, executor = fake_engine(depth=2, max_batch_size=2)
    for key in range(3):
        engine.add(key, GenerationRequest([key], 9))
    engine.step()
    executor.loses_results, executor.fail_next = True, launch_fails
    with pytest.raises(EngineBroken, match="a step failed: RuntimeError: the device is lost"):
        engine.step()
    events = engine.abort("engine_failed: gone")
    assert [(event.key, event.error) for event in events] == [
        (key, "engine_failed: gone") for key in range(3)
    ]
    assert not engine.has_work
    assert not engine.can_step
    assert engine.pool.used_blocks == engine.pool.cached_blocks == 0


def test_abort_drops_steps_in_flight_and_the_engine_goes_on() -> None:
    engine, _ = fake_engine(depth=2)
    engine.add(1, GenerationRequest([1], 9))
    engine.step()
    assert len(engine.abort("engine_failed: gone")) == 1
    assert not engine.has_work
    engine.add(1, GenerationRequest([1], 2))
    assert [event.token_ids for event in events_of(engine)] == [[t] for t in continuation([1], 2)]


def test_with_one_step_at_a_time_lost_results_fail_only_their_sequence() -> None:
    engine, executor = fake_engine()
    engine.add(1, GenerationRequest([1], 9))
    executor.loses_results = True
    (event,) = events_of(engine)
    assert (
        event.error
        == "engine_failed: the engine could not compute this sequence: RuntimeError: the device is lost"
    )


def guided_engine(**changes: Any) -> tuple[Engine, FakeExecutor, FakeCompiler]:
    compiler = FakeCompiler()
    engine, executor = fake_engine(depth=2, compiler=compiler, **changes)
    return engine, executor, compiler


def test_a_guided_sequence_costs_its_own_row_only() -> None:
    """As many steps as without it, each launched before the last one's tokens are known."""
    engine, executor, compiler = guided_engine()
    engine.add(1, GenerationRequest([1], 6, guide=only(5, 6, 7, 8, 9, 10)))
    engine.add(2, GenerationRequest([2], 6))
    compiler.finish()
    overlapping = []
    while engine.has_work:
        launched = len(executor.steps)
        engine.step()
        if len(executor.steps) > launched:
            overlapping.append(len(executor.steps) - executor.collected_steps)
    assert [len(chunks) for chunks in executor.steps] == [2] * 6
    assert overlapping == [1] * 6  # after each step one is under way


def test_a_guide_that_is_late_loses_its_turn_and_nobody_else_does() -> None:
    engine, executor, compiler = guided_engine()
    engine.add(1, GenerationRequest([1], 9, guide=only(5, 6, 7)))
    engine.add(2, GenerationRequest([2], 6))
    compiler.finish()
    told = [event for _ in range(2) for event in engine.step()]
    compiler.pace.is_ready = False
    for _ in range(3):
        told += engine.step()
    assert [token for event in told if event.key == 1 for token in event.token_ids] == [5]
    assert [len(chunks) for chunks in executor.steps] == [2, 2, 1, 1]  # the second step is in vain for it
    compiler.pace.is_ready = True
    told += events_of(engine)
    assert [token for event in told if event.key == 1 for token in event.token_ids] == [5, 6, 7]
    assert [token for event in told if event.key == 2 for token in event.token_ids] == continuation([2], 6)
    assert engine.pool.used_blocks == 0


def test_a_cancel_before_the_choice_takes_its_row_out_of_it() -> None:
    engine, executor, compiler = guided_engine()
    for key in (1, 2):
        engine.add(key, GenerationRequest([key], 3, guide=only(5, 6, 7)))
    compiler.finish()
    told = [event for _ in range(2) for event in engine.step()]
    assert engine.spare_s == 0
    engine.cancel(1)
    told += events_of(engine)
    assert [event.finish_reason for event in told if event.key == 1][-1] is FinishReason.CANCELLED
    assert [token for event in told if event.key == 2 for token in event.token_ids] == [5, 6, 7]
    assert sorted(sequence.key for sequence in executor.released) == [1, 2]


def test_a_choice_that_fails_is_made_again_with_its_step() -> None:
    engine, executor, compiler = guided_engine()
    engine.add(1, GenerationRequest([1], 9, guide=only(5, 6, 7)))
    engine.add(2, GenerationRequest([2], 6))
    compiler.finish()
    told = [event for _ in range(2) for event in engine.step()]
    executor.fail_next_choice = True
    told += events_of(engine)
    assert not executor.fail_next_choice
    assert [token for event in told if event.key == 1 for token in event.token_ids] == [5, 6, 7]
    assert [token for event in told if event.key == 2 for token in event.token_ids] == continuation([2], 6)
