from __future__ import annotations

import pytest

from python_backend.engine.report import FinishReason
from python_backend.engine.request import GenerationRequest, SamplingParams
from python_backend.engine.sequence import Sequence


def sequence_of(
    prompt: list[int],
    max_new_tokens: int = 10,
    end_id: int | None = None,
    stop: tuple[tuple[int, ...], ...] = (),
    min_tokens: int = 1,
) -> Sequence:
    request = GenerationRequest(prompt, max_new_tokens, end_id, stop, SamplingParams(min_tokens=min_tokens))
    return Sequence(0, 0, request, max_new_tokens)


def test_the_end_id_ends_the_answer_and_is_not_part_of_it() -> None:
    sequence = sequence_of([1, 2], end_id=9)
    assert sequence.accept(5) == [5]
    assert sequence.accept(9) == []
    assert sequence.finish_reason is FinishReason.END_ID
    assert sequence.generated_ids == [5]


@pytest.mark.parametrize("end_id", [None, -1])
def test_without_an_end_id_only_length_ends_the_answer(end_id: int | None) -> None:
    sequence = sequence_of([1], max_new_tokens=3, end_id=end_id)
    for token_id in (0, 1, 2):
        assert sequence.finish_reason is None
        sequence.accept(token_id)
    assert sequence.finish_reason is FinishReason.LENGTH


def test_a_stop_sequence_ends_the_answer_and_is_part_of_it() -> None:
    sequence = sequence_of([1], stop=((7, 8), (5,)))
    assert [sequence.accept(token_id) for token_id in (8, 7, 8)] == [[8], [7], [8]]
    assert sequence.finish_reason is FinishReason.STOP_WORDS
    assert sequence.generated_ids == [8, 7, 8]


def test_a_stop_sequence_does_not_reach_back_into_the_prompt() -> None:
    sequence = sequence_of([7], stop=((7, 8),))
    sequence.accept(8)
    assert sequence.finish_reason is None


def test_an_empty_stop_sequence_never_matches() -> None:
    sequence = sequence_of([7], stop=((),))
    sequence.accept(8)
    assert sequence.finish_reason is None


def test_neither_end_id_nor_stop_sequence_counts_before_min_tokens() -> None:
    sequence = sequence_of([1], end_id=9, stop=((5,),), min_tokens=3)
    assert sequence.accept(5) == [5]
    assert sequence.accept(9) == [9]
    assert sequence.finish_reason is None
    sequence.accept(5)
    assert sequence.finish_reason is FinishReason.STOP_WORDS


def test_a_stop_sequence_at_the_last_token_is_reported_as_a_stop() -> None:
    sequence = sequence_of([1], max_new_tokens=1, stop=((5,),))
    sequence.accept(5)
    assert sequence.finish_reason is FinishReason.STOP_WORDS


@pytest.mark.parametrize(
    ("sampling", "is_greedy"),
    [
        (SamplingParams(), True),
        (SamplingParams(temperature=0.0, top_k=5, top_p=0.9), True),
        (SamplingParams(temperature=1e-30, top_p=0.9), True),
        (SamplingParams(top_k=1, top_p=0.9), True),
        (SamplingParams(top_p=-1.0), True),
        (SamplingParams(top_k=2), False),
        (SamplingParams(top_p=1.0), False),
    ],
)
def test_a_request_is_greedy_when_the_contract_calls_it_so(sampling: SamplingParams, is_greedy: bool) -> None:
    assert sampling.is_greedy is is_greedy


def test_no_token_is_left_to_schedule_when_the_coming_one_must_be_the_last() -> None:
    sequence = sequence_of([1, 2], max_new_tokens=2)
    assert (sequence.expected_tokens, sequence.unscheduled_tokens) == (2, 2)
    sequence.scheduled_tokens, sequence.coming_tokens = 2, 1
    assert (sequence.expected_tokens, sequence.unscheduled_tokens) == (3, 1)
    sequence.scheduled_tokens, sequence.coming_tokens = 3, 2
    assert (sequence.expected_tokens, sequence.unscheduled_tokens) == (4, 0)
