"""When a first token is late, and how many requests may be asked twice for that."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.routing.hedging import FirstTokens, Hedges

TIMES = st.lists(st.floats(0.06, 60.0), min_size=20, max_size=150)


def learned(times_s: list[float], prompt_tokens: int = 100) -> FirstTokens:
    first_tokens = FirstTokens()
    for took_s in times_s:
        first_tokens.add(prompt_tokens, took_s)
    return first_tokens


def test_nothing_is_late_before_twenty_first_tokens_are_known() -> None:
    assert learned([0.1] * 19).late_s(100) is None
    assert learned([0.1] * 20).late_s(100) == 0.1


@given(TIMES)
def test_most_first_tokens_that_were_seen_are_not_late(times_s: list[float]) -> None:
    late_s = learned(times_s).late_s(100)
    assert late_s is not None
    known = times_s[: len(times_s) - len(times_s) % 10]  # what was seen when it last learned
    assert sum(took_s > late_s for took_s in known) <= 0.05 * len(known)


def test_long_prompts_may_take_longer_than_short_ones() -> None:
    first_tokens = learned([0.1] * 20, prompt_tokens=100)
    for _ in range(20):
        first_tokens.add(8000, 3.0)
    assert (first_tokens.late_s(120), first_tokens.late_s(7000)) == (0.1, 3.0)


def test_an_answer_within_a_moment_is_never_late() -> None:
    assert learned([0.001] * 20).late_s(100) == 0.05


@given(st.floats(0.1, 50.0), st.lists(st.booleans(), max_size=300))
def test_second_requests_stay_within_their_share_and_a_few(percent: float, asked_twice: list[bool]) -> None:
    hedges = Hedges(percent)
    requests = 0
    for is_late in asked_twice:
        requests += 1
        hedges.requested()
        if is_late:
            hedges.take()
    assert hedges.begun <= requests * percent / 100 + max(1.0, percent)
