from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.content.batches.decisions import ENDING, Event, Life, Status, TooLate, after

NEW = Life(Status.VALIDATING, created_s=1.0, expires_s=100.0)


def test_a_successful_batch_goes_from_validation_to_completion() -> None:
    life = after(after(after(NEW, Event.CHECKED, 2.0), Event.ALL_ANSWERED, 3.0), Event.WRITTEN, 4.0)
    assert life == Life(Status.COMPLETED, 1.0, 100.0, in_progress_s=2.0, finalizing_s=3.0, completed_s=4.0)


def test_a_batch_whose_window_closes_is_expired_once_its_output_is_written() -> None:
    closed = after(after(NEW, Event.CHECKED, 2.0), Event.WINDOW_CLOSED, 101.0)
    assert (closed.status, closed.expired_s) == (Status.FINALIZING, 101.0)
    ended = after(closed, Event.WRITTEN, 105.0)
    assert (ended.status, ended.expired_s, ended.completed_s) == (Status.EXPIRED, 101.0, None)


def test_a_batch_is_cancelled_once_and_cancelling_again_changes_nothing() -> None:
    cancelling = after(NEW, Event.CANCEL_ASKED, 2.0)
    assert after(cancelling, Event.CANCEL_ASKED, 3.0) == cancelling
    assert after(cancelling, Event.WRITTEN, 4.0).cancelled_s == 4.0


@given(st.lists(st.sampled_from(Event)))
def test_a_batch_ends_once_with_its_times_recorded_under_any_events(events: list[Event]) -> None:
    life = NEW
    for now_s, event in enumerate(events, start=2):
        try:
            moved = after(life, event, float(now_s))
        except TooLate:
            continue
        assert not life.status.is_over
        # What was once known is never changed.
        assert {name: at_s for name, at_s in asdict(life).items() if name != "status" and at_s}.items() <= (
            asdict(moved).items()
        )
        life = moved
    times = asdict(life)
    reached = times.get(f"{life.status.value}_s")
    assert life.status is Status.VALIDATING or reached is not None
    # From anywhere there is a way to the end.
    if not life.status.is_over:
        ending = life if life.status in ENDING else after(life, Event.CANCEL_ASKED, 999.0)
        assert after(ending, Event.WRITTEN, 1000.0).status.is_over


@pytest.mark.parametrize("status", [status for status in Status if status.is_over])
@pytest.mark.parametrize("event", Event)
def test_a_finished_batch_stays_finished(status: Status, event: Event) -> None:
    with pytest.raises(TooLate, match=status.value):
        after(Life(status, 1.0, 2.0), event, 3.0)
