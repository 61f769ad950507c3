"""How late a refusal is told to whoever keeps coming back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.admission.refusal_pace import AT_ONCE, LONGEST_S, PER_S, RefusalPace


def test_a_crowd_is_refused_at_once_however_large_its_burst() -> None:
    pace = RefusalPace()
    assert {pace.hold_s("crowd", 5.0, 10.0) for _ in range(AT_ONCE)} == {0.0}


def test_a_tenant_that_keeps_coming_is_told_later_but_never_beyond_its_time_to_retry() -> None:
    pace = RefusalPace()
    for _ in range(AT_ONCE):
        pace.hold_s("flood", 5.0, 10.0)
    assert pace.hold_s("flood", 5.0, 10.0) == LONGEST_S
    assert pace.hold_s("flood", 0.3, 10.0) == 0.3
    assert pace.hold_s("flood", None, 10.0) == LONGEST_S
    assert pace.hold_s("calm", 5.0, 10.0) == 0.0


def test_what_was_held_back_is_forgotten_as_quickly_after_a_long_flood_as_after_a_short_one() -> None:
    pace = RefusalPace()
    for _ in range(100 * AT_ONCE):
        pace.hold_s("flood", 5.0, 10.0)
    assert pace.hold_s("flood", 5.0, 10.0 + 2 / PER_S) == 0.0


@given(st.lists(st.floats(0.0, 0.2), min_size=300, max_size=900), st.floats(0.1, 30.0))
def test_a_tenant_hears_at_once_no_more_than_its_burst_and_its_rate(
    gaps_s: list[float], retry_s: float
) -> None:
    pace, now_s, at_once = RefusalPace(), 0.0, 0
    for gap_s in gaps_s:
        now_s += gap_s
        hold_s = pace.hold_s("one", retry_s, now_s)
        assert 0.0 <= hold_s <= min(LONGEST_S, retry_s)
        at_once += not hold_s
    assert at_once <= AT_ONCE + now_s * PER_S + 1


def test_tenants_whose_refusals_are_forgotten_take_no_memory() -> None:
    pace = RefusalPace()
    for number in range(30_000):
        pace.hold_s(f"tenant {number}", 1.0, number * 0.01)
    assert len(pace._told) <= 10_000
