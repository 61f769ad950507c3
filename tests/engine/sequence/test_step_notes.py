from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.engine.report import FinishReason, SequenceEvent
from python_backend.engine.request import GenerationRequest
from python_backend.engine.sequence.step_notes import MOST_ROWS, StepNotes
from python_backend.wire.tiers import Tier
from tests.engine.drained import events_of
from tests.fakes.executor import fake_engine

MS = 1_000_000

steps = st.tuples(
    st.integers(0, 100 * MS),  # a wait before it
    st.integers(1, 100 * MS),
    st.sampled_from([1, 1, 40]),
    st.integers(1, 2),
    st.integers(1, 2),
    st.booleans(),
)


@settings(deadline=None)
@given(st.lists(steps, max_size=600))
def test_all_steps_are_noted_in_rows_that_follow_each_other(
    taken: list[tuple[int, int, int, int, int, bool]],
) -> None:
    notes, now_ns = StepNotes(), 0
    for wait_ns, took_ns, tokens, sequences, step_tokens, is_prompt in taken:
        begin_ns, now_ns = now_ns + wait_ns, now_ns + wait_ns + took_ns
        notes.add(begin_ns, now_ns, tokens, sequences, step_tokens, is_prompt)
    rows = notes.rows
    assert len(rows) <= MOST_ROWS
    assert sum(row[5] for row in rows) == len(taken)
    assert sum(row[2] for row in rows) == sum(step[2] for step in taken)
    assert all(row[0] <= row[1] for row in rows)
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(rows))


def test_equal_steps_share_a_row_until_the_batch_changes_or_there_is_a_wait() -> None:
    notes = StepNotes()
    notes.add(0, 9 * MS, 100, 1, 100, True)
    notes.add(9 * MS, 10 * MS, 1, 1, 1, True)
    for number in range(4):
        notes.add((10 + number) * MS, (11 + number) * MS, 1, 1, 1, False)
    notes.add(14 * MS, 24 * MS, 1, 2, 512, False)
    notes.add(24 * MS, 25 * MS, 1, 2, 2, False)
    notes.add(25 * MS, 26 * MS, 1, 2, 2, False)
    notes.add(50 * MS, 51 * MS, 1, 2, 2, False)
    assert [(row[0] // MS, row[1] // MS, *row[2:]) for row in notes.rows] == [
        (0, 9, 100, 1, 100, 1),
        (9, 10, 1, 1, 1, 1),
        (10, 14, 4, 1, 1, 4),
        (14, 24, 1, 2, 512, 1),
        (24, 26, 2, 2, 2, 2),
        (50, 51, 1, 2, 2, 1),
    ]


def steps_of(events: list[SequenceEvent], key: int = 1) -> list[tuple[int, ...]]:
    """Without their times."""
    (told,) = [event.steps for event in events if event.key == key and event.steps is not None]
    return [tuple(row[2:]) for row in told]


@pytest.mark.parametrize("depth", [1, 2])
def test_the_steps_of_a_chunked_prompt_and_its_answer_are_reported_with_the_end(depth: int) -> None:
    engine, _ = fake_engine(max_step_tokens=16, depth=depth)
    engine.add(1, GenerationRequest([1] * 40, 5, notes_steps=True))
    events = events_of(engine)
    (last,) = [event for event in events if event.is_last]
    assert [event.steps is not None for event in events] == [event.is_last for event in events]
    told = last.steps
    assert told is not None
    assert [tuple(row[2:]) for row in told[:3]] == [(16, 1, 16, 1), (16, 1, 16, 1), (8, 1, 8, 1)]
    assert sum(row[2] for row in told[3:]) == sum(row[5] for row in told[3:]) == 4
    perf = last.perf
    assert perf is not None
    assert perf.first_scheduled_ns <= told[0][0]
    assert told[2][1] == perf.first_token_ns
    assert perf.first_token_ns <= told[3][0]
    assert told[-1][1] == perf.last_token_ns


def test_noted_steps_show_the_sequences_beside_them() -> None:
    engine, _ = fake_engine(max_step_tokens=64)
    engine.add(2, GenerationRequest([2] * 30, 2))
    engine.add(1, GenerationRequest([1] * 10, 3, notes_steps=True))
    assert steps_of(events_of(engine))[0] == (10, 2, 40, 1)


def test_steps_are_reported_only_on_request() -> None:
    engine, _ = fake_engine()
    engine.add(1, GenerationRequest([1] * 10, 3))
    assert [event.steps for event in events_of(engine) if event.steps] == []


def test_of_several_sequences_only_the_first_reports_steps() -> None:
    engine, _ = fake_engine()
    engine.add(1, GenerationRequest([1] * 10, 3, num_return_sequences=2, notes_steps=True))
    told = {event.sequence_index: event.steps for event in events_of(engine) if event.is_last}
    assert told[0] is not None
    assert told[1] is None


def test_a_cancelled_sequence_reports_its_steps_so_far() -> None:
    engine, _ = fake_engine(max_step_tokens=16)
    engine.add(1, GenerationRequest([1] * 40, 5, notes_steps=True))
    engine.step()
    engine.cancel(1)
    (event,) = engine.step()
    assert (event.finish_reason, steps_of([event])) == (FinishReason.CANCELLED, [(16, 1, 16, 1)])


def test_a_preempted_sequence_continues_the_same_list_of_steps() -> None:
    engine, _ = fake_engine(max_batch_size=1, enable_kv_cache_reuse=False)
    engine.add(1, GenerationRequest([1] * 4, 4, tier=Tier.BATCH, notes_steps=True))
    engine.step()
    engine.add(2, GenerationRequest([2], 1, tier=Tier.STANDARD))
    told = steps_of(events_of(engine))
    assert told[:2] == [(4, 1, 4, 1), (5, 1, 5, 1)], "the prompt, and all of it again"
    assert sum(row[3] for row in told) == 4


def test_the_answer_to_a_prompt_of_any_length_has_a_row_of_its_own() -> None:
    engine, _ = fake_engine(max_batch_size=1, max_step_tokens=1, total_blocks=200)
    engine.add(1, GenerationRequest([1] * 300, 10, notes_steps=True))
    told = steps_of(events_of(engine))
    assert len(told) == MOST_ROWS
    assert (told[-2][3], told[-1][3]) == (300 - (MOST_ROWS - 2), 9)


def test_a_long_answer_has_no_more_rows_than_allowed() -> None:
    engine, _ = fake_engine(max_step_tokens=16, total_blocks=200)
    engine.add(1, GenerationRequest([1] * 8, 400, notes_steps=True))
    told = steps_of(events_of(engine))
    assert len(told) <= MOST_ROWS
    assert sum(row[3] for row in told) == 400
