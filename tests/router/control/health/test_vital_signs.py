"""When a model counts as broken, when the work on it as lost, and when it is revived again."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.control.health.vital_signs import (
    LIVELY,
    LONGEST_PAUSE_S,
    NEVER_S,
    TRUSTED_AFTER_S,
    ProbeLimits,
    Pulse,
    Queue,
    Revivals,
    counts_as_missed,
    is_broken,
    is_server_gone,
    is_silent,
    says_dead,
)

LIMITS = ProbeLimits()
times_s = st.floats(0, 1e6)


def broken(pulse: Pulse, now_s: float = 100.0, **facts: float) -> bool:
    return is_broken(pulse, now_s, facts.get("patience_s", 0.0), int(facts.get("server_missed", 0)), LIMITS)


def watch(latencies_s: list[float], stop_s: float = math.inf, heard_s: Sequence[float] = ()) -> float | None:
    """When a model is found broken whose pings, one each period, take so long to be answered.

    It answers nothing from `stop_s` on, and requests hear of it at `heard_s`.
    """
    events = []
    for number, latency_s in enumerate(latencies_s):
        sent_s = number * LIMITS.period_s
        answered_s = sent_s + latency_s
        if answered_s >= stop_s:
            answered_s = math.inf
        if answered_s > sent_s + LIMITS.late_s:
            events.append((sent_s + LIMITS.late_s, 1, sent_s))
        events.append((answered_s, 0, sent_s))
    pulse = LIVELY
    for at_s, is_miss, sent_s in sorted(events):
        last_s = max((each for each in heard_s if each <= at_s), default=NEVER_S)
        pulse = pulse.after_miss(sent_s, last_s) if is_miss else LIVELY
        if broken(pulse, at_s):
            return at_s
    return None


@given(st.lists(st.floats(0, 3.4), min_size=1, max_size=200))
@settings(deadline=None)
def test_a_model_that_answers_within_three_seconds_is_never_broken(latencies_s: list[float]) -> None:
    assert watch(latencies_s) is None


@given(
    st.lists(st.floats(0, 1.4), min_size=20, max_size=40),
    st.floats(0, 10),
    st.lists(st.floats(0, 1), max_size=20),
)
@settings(deadline=None)
def test_a_frozen_model_is_noticed_within_five_seconds(
    latencies_s: list[float], frozen_s: float, shares: list[float]
) -> None:
    found_s = watch(latencies_s, frozen_s, [share * frozen_s for share in shares])
    assert found_s is not None
    assert found_s - frozen_s <= 5.0


@pytest.mark.parametrize(
    ("text", "dead"),
    [
        ("Failed to process the request(s) ..., message: Stub process 'x_0_0' is not healthy.", True),
        ("The stub process is unhealthy", True),
        ("[request id: a] Request timeout expired", False),
        ("the model is not healthy food", False),
        ("", False),
    ],
)
def test_tritons_error_for_a_dead_process_is_recognised(text: str, dead: bool) -> None:
    assert says_dead(text) is dead


def test_a_death_counts_at_once_whatever_else_is_heard() -> None:
    dead = LIVELY.after_death()
    assert broken(dead, server_missed=5, patience_s=50.0)
    assert broken(dead.after_miss(sent_s=1.0, heard_s=2.0))


@given(st.integers(0, 10), times_s, times_s, st.integers(0, 5), st.floats(0, 60))
@settings(deadline=None)
def test_silence_counts_only_when_all_else_speaks(
    missed: int, since_s: float, now_s: float, server_missed: int, patience_s: float
) -> None:
    found = broken(Pulse(missed, since_s), now_s, server_missed=server_missed, patience_s=patience_s)
    excused = missed < 3 or server_missed > 0 or now_s - since_s < patience_s
    assert found is not excused


@given(st.lists(st.tuples(times_s, times_s), max_size=20))
@settings(deadline=None)
def test_pings_count_as_missed_only_if_sent_after_the_model_was_last_heard_from(
    misses: list[tuple[float, float]],
) -> None:
    pulse, heard_s = LIVELY, NEVER_S
    for sent_s, newly_heard_s in misses:
        heard_s = max(heard_s, newly_heard_s)
        pulse = pulse.after_miss(sent_s, heard_s)
        assert pulse.missed == 0 or pulse.since_s > heard_s


def test_a_miss_counts_only_for_a_router_that_was_on_time() -> None:
    assert counts_as_missed(10.0, 11.5, LIMITS)
    assert counts_as_missed(10.0, 12.0, LIMITS)
    assert not counts_as_missed(10.0, 12.1, LIMITS)
    assert not counts_as_missed(10.0, 11.4, LIMITS)


def test_only_a_model_with_work_may_delay_its_pings() -> None:
    assert LIMITS.patience_s(Queue.LONG, is_busy=False) == 0
    assert LIMITS.patience_s(Queue.NONE, is_busy=True) == 0
    assert 0 < LIMITS.patience_s(Queue.SHORT, is_busy=True) < LIMITS.patience_s(Queue.LONG, is_busy=True)


def test_a_server_is_gone_when_neither_pings_nor_requests_hear_from_it() -> None:
    silent = Pulse(2, since_s=50.0)
    assert not is_server_gone(silent, LIMITS)
    assert is_server_gone(silent.after_miss(sent_s=52.0, heard_s=49.0), LIMITS)
    assert not is_server_gone(silent.after_miss(sent_s=52.0, heard_s=51.0), LIMITS)


@given(times_s, times_s)
@settings(deadline=None)
def test_work_counts_as_silent_only_while_it_exists(now_s: float, heard_s: float) -> None:
    assert not is_silent(now_s, math.inf, heard_s, LIMITS)
    assert is_silent(now_s, NEVER_S, heard_s, LIMITS) == (now_s - heard_s >= LIMITS.silence_s)


@given(st.lists(st.floats(0, 200), max_size=30))
@settings(deadline=None)
def test_revivals_come_at_once_then_ever_later_and_never_end(waits_s: list[float]) -> None:
    revivals, now_s = Revivals(), 1000.0
    assert revivals.due_s <= now_s
    for wait_s in waits_s:
        pause_s = revivals.due_s - revivals.last_s if revivals.attempts else 0.0
        now_s = max(revivals.due_s, now_s) + wait_s
        following = revivals.after_attempt(now_s)
        next_pause_s = following.due_s - now_s
        assert next_pause_s <= LONGEST_PAUSE_S
        if wait_s < TRUSTED_AFTER_S - 1 and revivals.attempts:
            assert next_pause_s >= min(pause_s, LONGEST_PAUSE_S) - 1e-6
        if wait_s >= TRUSTED_AFTER_S + 1:
            assert following.attempts == 1
        revivals = following


def test_each_revival_in_a_row_waits_twice_as_long_as_the_one_before_and_a_minute_at_most() -> None:
    revivals, pauses_s = Revivals(), []
    for _ in range(8):
        revivals = revivals.after_attempt(max(revivals.due_s, 0.0))
        pauses_s.append(revivals.due_s - revivals.last_s)
    assert pauses_s == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
