from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from python_backend.engine.config import EngineConfig, EngineLimits
from python_backend.engine.engine import Engine
from python_backend.engine.kv.blocks import BlockPool
from python_backend.engine.refusals import refuse_impossible
from python_backend.engine.report import FinishReason, SequenceEvent
from python_backend.engine.request import (
    GenerationRequest,
    Guide,
    GuideKind,
    Retention,
    RetentionRange,
    SamplingParams,
)
from python_backend.engine.sequence import Sequence
from python_backend.engine.steps import answers
from python_backend.engine.steps.events import token_event
from python_backend.wire.errors import ErrorKind, InflightError
from tests.engine.drained import drain, events_of
from tests.fakes.executor import VOCABULARY, FakeExecutor, continuation, fake_engine


def refusal(engine: Engine, request: GenerationRequest) -> InflightError:
    with pytest.raises(InflightError) as raised:
        engine.add(1, request)
    assert not engine.has_work
    return raised.value


def test_a_request_is_answered_with_the_models_continuation() -> None:
    engine, _ = fake_engine()
    engine.add(7, GenerationRequest([1, 2, 3], 5))
    assert drain(engine) == {7: (continuation([1, 2, 3], 5), FinishReason.LENGTH)}
    assert engine.pool.used_blocks == 0


def test_each_step_gives_each_running_sequence_its_next_token() -> None:
    engine, _ = fake_engine()
    engine.add(1, GenerationRequest([1], 3))
    engine.add(2, GenerationRequest([2], 3))
    for step in range(3):
        events = {event.key: event.token_ids for event in engine.step()}
        assert events == {1: continuation([1], 3)[step : step + 1], 2: continuation([2], 3)[step : step + 1]}
    assert not engine.has_work


def test_a_short_request_in_flight_with_a_long_one_does_not_wait_for_it() -> None:
    engine, _ = fake_engine()
    engine.add(1, GenerationRequest([1], 100))
    engine.step()
    engine.add(2, GenerationRequest([2], 2))
    ended = [event.key for _ in range(3) for event in engine.step() if event.finish_reason]
    assert ended == [2]


def test_under_static_batching_a_short_request_waits_for_a_long_one() -> None:
    engine, _ = fake_engine(static_batching=True)
    engine.add(1, GenerationRequest([1], 50))
    engine.step()
    engine.add(2, GenerationRequest([2], 2))
    ended = [event.key for _ in range(60) for event in engine.step() if event.finish_reason]
    assert ended == [1, 2]


def test_the_end_id_is_left_out_and_a_stop_sequence_is_kept() -> None:
    engine, _ = fake_engine()
    answer = continuation([1, 2], 6)
    engine.add(1, GenerationRequest([1, 2], 6, end_id=answer[3]))
    engine.add(2, GenerationRequest([1, 2], 6, stop_sequences=((answer[2], answer[3]),)))
    assert drain(engine) == {
        1: (answer[:3], FinishReason.END_ID),
        2: (answer[:4], FinishReason.STOP_WORDS),
    }


def test_a_cancelled_sequence_ends_within_one_step_and_its_blocks_are_free() -> None:
    engine, _ = fake_engine()
    engine.add(1, GenerationRequest([1] * 10, 100))
    engine.step()
    engine.step()
    engine.cancel(1)
    assert [(event.key, event.token_ids, event.finish_reason) for event in engine.step()] == [
        (1, [], FinishReason.CANCELLED)
    ]
    assert not engine.has_work
    assert engine.pool.used_blocks == 0


def test_a_waiting_sequence_can_be_cancelled() -> None:
    engine, _ = fake_engine(max_batch_size=1)
    engine.add(1, GenerationRequest([1], 5))
    engine.add(2, GenerationRequest([2], 5))
    engine.step()
    engine.cancel(2)
    assert drain(engine)[2] == ([], FinishReason.CANCELLED)


def test_cancelling_twice_too_late_or_an_unknown_key_changes_nothing() -> None:
    engine, _ = fake_engine()
    engine.cancel(99)
    engine.add(1, GenerationRequest([1], 1))
    engine.add(2, GenerationRequest([2], 5))
    engine.step()
    engine.cancel(1)
    engine.cancel(2)
    engine.cancel(2)
    assert [(event.key, event.finish_reason) for event in engine.step()] == [(2, FinishReason.CANCELLED)]


def test_nan_scores_end_only_their_own_sequence() -> None:
    engine, _ = fake_engine(broken_token=13)
    engine.add(1, GenerationRequest([1, 2], 4))
    engine.add(2, GenerationRequest([1, 13], 4))
    events = {event.key: event for event in engine.step()}
    assert events[2].finish_reason is FinishReason.ERROR
    assert events[2].error == "engine_failed: the model's logits for the next token are not numbers"
    assert events[1].finish_reason is None
    assert drain(engine)[1][1] is FinishReason.LENGTH


def test_abort_ends_every_sequence_and_the_engine_goes_on() -> None:
    engine, _ = fake_engine(max_batch_size=2)
    for key in range(4):
        engine.add(key, GenerationRequest([key], 5))
    engine.step()
    events = engine.abort("engine_failed: a step failed")
    assert {event.key: (event.finish_reason, event.error) for event in events} == dict.fromkeys(
        range(4), (FinishReason.ERROR, "engine_failed: a step failed")
    )
    assert not engine.has_work
    assert (engine.pool.used_blocks, engine.pool.cached_blocks) == (0, 0)
    engine.add(9, GenerationRequest([9], 3))
    assert drain(engine) == {9: (continuation([9], 3), FinishReason.LENGTH)}


def test_a_preempted_sequence_continues_exactly_where_it_was() -> None:
    engine, _ = fake_engine(total_blocks=6, tokens_per_block=4)
    for key in range(3):
        engine.add(key, GenerationRequest([key] * 3, 18))
    answers = drain(engine)
    assert engine.gauges().preemptions > 0
    assert answers == {key: (continuation([key] * 3, 18), FinishReason.LENGTH) for key in range(3)}


def test_a_cache_for_three_sequences_serves_twenty_requests() -> None:
    for guaranteed_no_evict in (True, False):
        engine, _ = fake_engine(total_blocks=15, tokens_per_block=4, guaranteed_no_evict=guaranteed_no_evict)
        for key in range(20):
            engine.add(key, GenerationRequest([key] * 8, 12))
        answers = drain(engine)
        assert answers == {key: (continuation([key] * 8, 12), FinishReason.LENGTH) for key in range(20)}


def test_an_answer_is_cut_to_what_the_context_leaves() -> None:
    engine, _ = fake_engine(max_sequence_tokens=10)
    engine.add(1, GenerationRequest([1] * 7, 1000))
    assert drain(engine) == {1: (continuation([1] * 7, 3), FinishReason.LENGTH)}


def test_an_answer_may_fill_the_whole_pool() -> None:
    engine, _ = fake_engine(total_blocks=3, tokens_per_block=4)
    engine.add(1, GenerationRequest([1], 1000))
    assert len(drain(engine)[1][0]) == 11


def test_the_same_key_cannot_be_used_twice_at_once() -> None:
    engine, _ = fake_engine()
    engine.add(1, GenerationRequest([1], 1))
    with pytest.raises(ValueError, match="already in use"):
        engine.add(1, GenerationRequest([1], 1))
    drain(engine)
    engine.add(1, GenerationRequest([1], 1))


def test_a_prompt_as_long_as_the_context_is_refused_naming_both() -> None:
    engine, _ = fake_engine(max_sequence_tokens=10)
    error = refusal(engine, GenerationRequest([1] * 10, 1))
    assert error.kind is ErrorKind.CONTEXT_LENGTH_EXCEEDED
    assert "10 tokens" in error.message
    assert "at most 10" in error.message
    engine.add(1, GenerationRequest([1] * 9, 1))


def test_a_prompt_that_could_never_fit_into_the_pool_is_refused() -> None:
    engine, _ = fake_engine(total_blocks=3, tokens_per_block=4)
    assert refusal(engine, GenerationRequest([1] * 12, 1)).kind is ErrorKind.CONTEXT_LENGTH_EXCEEDED
    with pytest.raises(ValueError, match="never fit"):
        Engine(EngineConfig(""), EngineLimits(9, 13), BlockPool(3, 4), FakeExecutor(BlockPool(3, 4)))


@pytest.mark.parametrize("stray", [-1, VOCABULARY, 10**9])
def test_a_prompt_token_outside_the_vocabulary_is_refused_by_name(stray: int) -> None:
    engine, _ = fake_engine()
    error = refusal(engine, GenerationRequest([1, stray, 2], 1))
    assert error.kind is ErrorKind.INVALID_REQUEST
    assert error.message == f"the prompt holds token id {stray}; allowed: 0 to {VOCABULARY - 1}"


def test_ids_beyond_the_vocabulary_stand_for_others_where_any_are_taken() -> None:
    engine, _ = fake_engine()
    engine.add(7, GenerationRequest([1, VOCABULARY + 3, 2], 2, takes_any_ids=True))
    assert drain(engine) == {7: (continuation([1, 3, 2], 2), FinishReason.LENGTH)}
    error = refusal(engine, GenerationRequest([-1], 1, takes_any_ids=True))
    assert error.message.startswith("the prompt holds token id -1")


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (GenerationRequest([], 1), "the prompt has no tokens"),
        (GenerationRequest([1], 0), "request_output_len is 0; it must be at least 1"),
        (GenerationRequest([1], -5), "request_output_len is -5; it must be at least 1"),
        (GenerationRequest([1], 1, end_id=-2), "end_id is -2; allowed: -1 (none) to 97"),
        (GenerationRequest([1], 1, end_id=98), "end_id is 98; allowed: -1 (none) to 97"),
        (
            GenerationRequest([1], 1, sampling=SamplingParams(temperature=-1.0)),
            "temperature is -1.0; it must be 0 or above",
        ),
        (
            GenerationRequest([1], 1, sampling=SamplingParams(temperature=float("nan"))),
            "temperature is nan; it must be 0 or above",
        ),
        (
            GenerationRequest([1], 1, sampling=SamplingParams(top_k=-1)),
            "runtime_top_k is -1; it must be 0 or above",
        ),
        (
            GenerationRequest([1], 1, sampling=SamplingParams(top_p=1.5)),
            "runtime_top_p is 1.5; it must be at most 1",
        ),
        (
            GenerationRequest([1], 1, sampling=SamplingParams(repetition_penalty=0.0)),
            "repetition_penalty is 0.0; it must be above 0",
        ),
        (
            GenerationRequest([1], 1, sampling=SamplingParams(presence_penalty=float("inf"))),
            "presence_penalty is inf; it must be a number",
        ),
        (
            GenerationRequest([1], 1, sampling=SamplingParams(min_tokens=-1)),
            "min_tokens is -1; it must be 0 or above",
        ),
        (
            GenerationRequest([1], 1, sampling=SamplingParams(top_p_min=1.5)),
            "runtime_top_p_min is 1.5; it must be from 0 to 1",
        ),
        (
            GenerationRequest([1], 1, sampling=SamplingParams(top_p_decay=0.0)),
            "runtime_top_p_decay is 0.0; it must be above 0 and at most 1",
        ),
        (
            GenerationRequest([1], 1, sampling=SamplingParams(top_p_reset_id=97)),
            "runtime_top_p_reset_ids is 97; it must be from -1 (none) to 96",
        ),
        (
            GenerationRequest([1], 1, num_return_sequences=0),
            "num_return_sequences is 0; allowed: 1 to 8",
        ),
        (
            GenerationRequest([1], 1, num_return_sequences=9),
            "num_return_sequences is 9; allowed: 1 to 8",
        ),
        (
            GenerationRequest([1], 1, token_bias={97: 1.0}),
            "embedding_bias holds token id 97; allowed: 0 to 96",
        ),
        (
            GenerationRequest([1], 1, token_bias={5: float("inf")}),
            "embedding_bias of token id 5 is inf; it must be a number",
        ),
        (
            GenerationRequest([1], 1, bad_sequences=((1,), (2, -3))),
            "bad_words_list holds token id -3; allowed: 0 to 96",
        ),
        (
            GenerationRequest([1], 1, bad_sequences=((1, 2),) * 1025),
            "bad_words_list has 1025 words; allowed: at most 1024",
        ),
        (
            GenerationRequest([1], 1, stop_sequences=((1, 2),) * 1025),
            "stop_words_list has 1025 words; allowed: at most 1024",
        ),
        (
            GenerationRequest([1], 1, retention=Retention((RetentionRange(0, None, 50),) * 257)),
            "retention_token_range_starts has 257 ranges; allowed: at most 256",
        ),
        (
            GenerationRequest([1], 1, retention=Retention((RetentionRange(-1, None, 50),))),
            "a retention range starts at token -1; it must be 0 or above",
        ),
        (
            GenerationRequest([1], 1, retention=Retention((RetentionRange(4, 4, 50),))),
            "a retention range starts at token 4 and ends at 4; it must end later, or at -1 (the last token)",
        ),
        (
            GenerationRequest([1], 1, retention=Retention((RetentionRange(0, None, 101),))),
            "a retention range's priority is 101; allowed: 0 to 100",
        ),
        (
            GenerationRequest([1], 1, retention=Retention((RetentionRange(0, None, 50, -2),))),
            "a retention range's duration is -2 ms; it must be 0 or above, or -1 (for ever)",
        ),
        (
            GenerationRequest([1], 1, retention=Retention(decode_priority=-1)),
            "the retention_decode priority is -1; allowed: 0 to 100",
        ),
        (
            GenerationRequest([1], 1, guide=Guide(GuideKind.REGEX)),
            "guided_decoding_guide is empty; regex needs a text",
        ),
        (
            GenerationRequest([1], 1, guide=Guide(GuideKind.REGEX, "a" * 262145)),
            "guided_decoding_guide has 262145 characters; allowed: at most 262144",
        ),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_by_name(request_: GenerationRequest, sentence: str) -> None:
    engine, _ = fake_engine()
    error = refusal(engine, request_)
    assert (error.kind, error.message) == (ErrorKind.INVALID_REQUEST, sentence)


@pytest.mark.parametrize(
    ("request_", "names", "tokens"),
    [
        (GenerationRequest([1] * 600, 1, returns_context_logits=True), "return_context_logits", 600),
        (GenerationRequest([1], 9000, returns_generation_logits=True), "return_generation_logits", 999),
        (
            GenerationRequest([1] * 300, 300, returns_context_logits=True, returns_generation_logits=True),
            "return_context_logits and return_generation_logits",
            600,
        ),
    ],
)
def test_more_logits_than_can_be_gathered_are_refused_with_their_size(
    request_: GenerationRequest, names: str, tokens: int
) -> None:
    with pytest.raises(InflightError) as raised:
        refuse_impossible(request_, 150_000, 1000, 8)
    assert raised.value.kind is ErrorKind.INVALID_REQUEST
    assert raised.value.message == (
        f"{names} for 1 sequence(s) would give the logits of {tokens} tokens, {tokens * 600_000} bytes; "
        "allowed: at most 268435456 bytes (447 tokens)"
    )


def test_logits_count_once_for_each_sequence_and_only_on_request() -> None:
    refuse_impossible(GenerationRequest([1] * 600, 300), 150_000, 1000, 8)
    fits = GenerationRequest([1] * 100, 47, returns_context_logits=True, num_return_sequences=4)
    refuse_impossible(fits, 150_000, 1000, 8)
    with pytest.raises(InflightError, match="for 5 sequence"):
        refuse_impossible(replace(fits, num_return_sequences=5), 150_000, 1000, 8)


def test_images_are_refused_beyond_what_a_runtime_takes_which_is_none_unless_it_says_so() -> None:
    shown = GenerationRequest([1], 1, images=(b"one", b"two"))
    with pytest.raises(InflightError, match="images has 2 files; allowed: at most 0"):
        refuse_impossible(shown, 150_000, 1000, 8)
    refuse_impossible(shown, 150_000, 1000, 8, max_images=2)


def test_an_event_that_cannot_be_built_ends_its_own_sequence_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def telling(sequence: Sequence, *rest: Any) -> SequenceEvent:
        if sequence.key == 1 and sequence.generated_tokens == 2:
            raise MemoryError
        return token_event(sequence, *rest)

    monkeypatch.setattr(answers, "token_event", telling)
    engine, _ = fake_engine()
    for key in range(3):
        engine.add(key, GenerationRequest([key, 5], 3))
    events = events_of(engine)
    assert [event.error for event in events if event.error] == [
        "engine_failed: the answer could not be continued: MemoryError"
    ]
    ends = {event.key: event.finish_reason for event in events if event.is_last}
    assert ends == {0: FinishReason.LENGTH, 1: FinishReason.ERROR, 2: FinishReason.LENGTH}


def test_abort_does_not_end_an_ended_sequence_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = fake_engine()
    engine.add(1, GenerationRequest([1], 1))
    engine.add(2, GenerationRequest([2], 9))

    def failing(ended: list[Sequence]) -> None:
        if ended:
            raise RuntimeError("no luck")

    monkeypatch.setattr(engine, "_leave", failing)
    with pytest.raises(RuntimeError, match="no luck"):
        engine.step()
    monkeypatch.undo()
    events = engine.abort("engine_failed: gone")
    ends = [(event.key, event.finish_reason, event.error) for event in events if event.is_last]
    assert ends == [
        (1, FinishReason.LENGTH, None),
        (2, FinishReason.ERROR, "engine_failed: gone"),
    ]
    assert not engine.has_work
    engine.add(1, GenerationRequest([1], 1))
    assert drain(engine) == {1: (continuation([1], 1), FinishReason.LENGTH)}


def test_a_setting_below_one_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="tokens_per_block is 0; it must be at least 1"):
        EngineConfig("somewhere", tokens_per_block=0)


def test_the_stats_show_running_and_waiting_sequences_and_free_blocks() -> None:
    engine, _ = fake_engine(total_blocks=10, max_batch_size=2, guaranteed_no_evict=True)
    for key in range(3):
        engine.add(key, GenerationRequest([key] * 5, 3))
    assert (engine.gauges().active, engine.gauges().waiting, engine.gauges().step_count) == (3, 3, 0)
    engine.step()
    first = engine.gauges()
    assert (first.active, first.running, first.waiting, first.scheduled) == (3, 2, 1, 2)
    assert (first.context, first.context_tokens) == (2, 10)
    assert (first.total_blocks, first.used_blocks, first.free_blocks) == (10, 4, 6)
    engine.step()
    assert (engine.gauges().context, engine.gauges().context_tokens, engine.gauges().step_count) == (0, 0, 2)
