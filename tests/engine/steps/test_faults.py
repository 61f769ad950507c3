from __future__ import annotations

import math

import pytest

from python_backend.engine.report import FinishReason
from python_backend.engine.request import GenerationRequest
from python_backend.wire.errors import ErrorKind, InflightError
from tests.engine.drained import answers_of, drain, events_of
from tests.fakes.executor import continuation, fake_engine

DEADLY = 13


@pytest.mark.parametrize("culprits", [{0}, {7}, {2, 5}, {0, 1, 2}])
def test_a_step_that_raises_fails_only_for_the_sequences_that_cause_it(culprits: set[int]) -> None:
    engine, executor = fake_engine(deadly_token=DEADLY)
    for key in range(8):
        engine.add(key, GenerationRequest([DEADLY if key in culprits else 1, key, 3], 4))
    events = engine.step()
    assert {event.key for event in events} == set(range(8))
    failed = {event.key: event.error for event in events if event.is_last}
    assert failed == dict.fromkeys(
        culprits,
        "engine_failed: the engine could not compute this sequence: RuntimeError: token 13 is too much",
    )
    assert executor.passes <= 1 + 2 * len(culprits) * math.log2(8)
    rest = drain(engine)
    for key in set(range(8)) - culprits:
        assert rest[key] == (continuation([1, key, 3], 4)[1:], FinishReason.LENGTH)


def test_a_step_that_is_too_large_is_run_in_parts_and_no_sequence_fails() -> None:
    engine, executor = fake_engine()
    executor.most_tokens = 6
    for key in range(8):
        engine.add(key, GenerationRequest([key] * 3, 4))
    assert drain(engine) == {key: (continuation([key] * 3, 4), FinishReason.LENGTH) for key in range(8)}


def test_a_passing_fault_fails_no_sequence() -> None:
    engine, executor = fake_engine()
    for key in range(2):
        engine.add(key, GenerationRequest([key] * 3, 4))
    executor.fail_next = True
    assert drain(engine) == {key: (continuation([key] * 3, 4), FinishReason.LENGTH) for key in range(2)}


def test_a_memory_error_is_reported_by_name() -> None:
    engine, executor = fake_engine()
    executor.most_tokens = 2
    engine.add(1, GenerationRequest([1, 2, 3], 4))
    (event,) = events_of(engine)
    assert event.error == "engine_failed: the engine could not compute this sequence: MemoryError"
    assert event.finish_reason is FinishReason.ERROR


def test_a_step_that_fails_for_every_sequence_is_not_retried_for_each() -> None:
    engine, executor = fake_engine(max_batch_size=64, max_step_tokens=256, total_blocks=256)
    executor.most_tokens = 0
    for key in range(64):
        engine.add(key, GenerationRequest([key] * 3, 4))
    assert {event.key for event in engine.step() if event.error} == set(range(64))
    assert executor.passes < 32
    executor.most_tokens = None
    engine.add(100, GenerationRequest([1], 2))
    assert drain(engine) == {100: (continuation([1], 2), FinishReason.LENGTH)}


def test_copies_are_repeated_when_a_step_is_retried() -> None:
    engine, executor = fake_engine(deadly_token=DEADLY, max_step_tokens=64)
    prompt = [1, 2, 3, 4, 5, 6]
    engine.add(1, GenerationRequest(prompt, 5, num_return_sequences=4))
    engine.step()
    engine.add(2, GenerationRequest([DEADLY, 1], 5))
    executor.fail_next = True  # before it has copied anything
    answers = answers_of(engine)
    assert answers.pop((2, 0)) == ([], FinishReason.ERROR)
    assert answers[1, 0] == (continuation(prompt, 5)[1:], FinishReason.LENGTH)
    for index in range(1, 4):
        assert answers[1, index] == (continuation(prompt, 5, 0, index), FinishReason.LENGTH)


def test_a_sequence_that_alone_cannot_go_on_ends_with_its_own_reason() -> None:
    engine, executor = fake_engine()
    for key in range(2):
        engine.add(key, GenerationRequest([key] * 3, 4))
    executor.refusals[1] = InflightError(ErrorKind.INVALID_REQUEST, "its guide costs too much")
    errors = {event.key: event.error for event in engine.step()}
    assert errors == {0: None, 1: "invalid_request: its guide costs too much"}
    assert executor.passes == 1


def test_blocks_of_a_failed_sequence_are_not_found_again() -> None:
    engine, executor = fake_engine(broken_token=DEADLY, max_step_tokens=8)
    prompt = [1] * 16 + [DEADLY]
    for key in range(2):
        before = executor.computed_tokens
        engine.add(key, GenerationRequest(prompt, 4))
        assert drain(engine) == {key: ([], FinishReason.ERROR)}
        assert executor.computed_tokens - before == 17
    assert engine.pool.cached_blocks == 0


def test_a_request_with_its_own_error_takes_no_cached_prefix_from_others() -> None:
    engine, executor = fake_engine()
    prompt = list(range(12))
    engine.add(0, GenerationRequest([*prompt, 50], 2))
    drain(engine)
    cached = engine.pool.cached_blocks
    assert cached > 0
    executor.refusals[1] = InflightError(ErrorKind.INVALID_REQUEST, "its guide costs too much")
    engine.add(1, GenerationRequest([*prompt, 51], 2))
    assert drain(engine) == {1: ([], FinishReason.ERROR)}
    assert engine.pool.cached_blocks == cached
    executor.refusals[2] = InflightError(ErrorKind.ENGINE_FAILED, "the engine broke")
    engine.add(2, GenerationRequest([*prompt, 52], 2))
    assert drain(engine) == {2: ([], FinishReason.ERROR)}
    assert engine.pool.cached_blocks < cached
