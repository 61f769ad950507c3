from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.content.batches.decisions import MAX_ATTEMPTS, Again, Backlog, shares, verdict

backlogs = st.lists(st.tuples(st.sampled_from("ABC"), st.integers(0, 5)), max_size=6).map(
    lambda found: [Backlog(f"batch-{n}", org, left) for n, (org, left) in enumerate(found)]
)


@given(st.integers(0, 12), backlogs, st.dictionaries(st.sampled_from("ABC"), st.integers(0, 4)))
def test_free_slots_are_filled_evenly_and_never_beyond_the_backlog(
    free: int, waiting: list[Backlog], under_way: dict[str, int]
) -> None:
    taken = shares(free, waiting, under_way)
    left = {backlog.batch_id: backlog.left for backlog in waiting}
    assert all(0 < count <= left[batch_id] for batch_id, count in taken.items())
    assert sum(taken.values()) == min(free, sum(left.values()))
    busy = dict.fromkeys("ABC", 0) | under_way
    rest = dict.fromkeys("ABC", 0)
    got = dict.fromkeys("ABC", 0)
    for backlog in waiting:
        count = taken.get(backlog.batch_id, 0)
        busy[backlog.organisation_id] += count
        got[backlog.organisation_id] += count
        rest[backlog.organisation_id] += backlog.left - count
    for served in "ABC":
        for kept_waiting in "ABC":
            if got[served] and rest[kept_waiting]:
                assert busy[served] <= busy[kept_waiting] + 1


def test_an_organisations_oldest_batch_goes_first() -> None:
    assert shares(3, [Backlog("old", "A", 2), Backlog("new", "A", 2)], {}) == {"old": 2, "new": 1}


@pytest.mark.parametrize(
    ("status", "code", "retry_after_s", "expected"),
    [
        (200, None, None, None),
        (400, None, None, None),
        (404, "model_not_found", None, None),
        (500, "internal_error", None, None),
        (429, "rate_limit_exceeded", 2.5, Again(2.5)),
        (429, "rate_limit_exceeded", 1e9, Again(300.0)),
        (429, "rate_limit_exceeded", None, None),
        (429, "insufficient_quota", None, Again(60.0)),
        (503, "overloaded", 2.0, Again(2.0)),
        (503, "overloaded", None, Again(1.0)),
        (499, "cancelled", None, Again(1.0)),
        (503, "engine_failed", 2.0, Again(1.0, is_attempt=True)),
    ],
)
def test_a_passing_error_is_retried_and_a_permanent_one_is_the_answer(
    status: int, code: str | None, retry_after_s: float | None, expected: Again | None
) -> None:
    assert verdict(status, code, retry_after_s, attempts=0) == expected


def test_a_request_that_breaks_the_engine_is_not_retried_for_ever() -> None:
    assert verdict(503, "engine_failed", None, attempts=MAX_ATTEMPTS - 1) is None
    assert verdict(503, "overloaded", None, attempts=1000) == Again(1.0)
