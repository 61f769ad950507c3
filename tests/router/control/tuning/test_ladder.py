"""When a queue delay is changed: down at once, up slowly, back when it was not worth it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.control.tuning.ladder import Action, Course, Decision, Moment, Pace, Trial, Window, decide
from router.control.tuning.queue_delay import LADDER_MS, QueueDelay

PACE = Pace()
WINDOW = Window(30, 6000, 6000, 3000, 0, 15_000, 12, 16, 100, 100)
LATE = replace(WINDOW, late_ms=120.0)


def aim(delay_ms: float) -> QueueDelay:
    return QueueDelay(delay_ms, 8, 256, f"{delay_ms:g} ms would be right")


def windows(
    delay_ms: float, aims: Sequence[float], course: Course | None = None, window: Window = WINDOW
) -> tuple[list[Decision], Course]:
    """One after the other, 30 s apart, with what was decided in force."""
    course, decisions = course or Course(), []
    for number, wish in enumerate(aims):
        decision, course = decide(Moment(delay_ms, 30.0 * number, PACE), aim(wish), window, course)
        delay_ms = decision.delay_ms
        decisions.append(decision)
        if decision.action is Action.RAISE:
            course = replace(course, trial=None)  # as if it had turned out well
    return decisions, course


def actions(decisions: list[Decision]) -> list[Action]:
    return [each.action for each in decisions]


def test_a_longer_delay_is_tried_after_three_windows_that_want_it() -> None:
    decisions, course = windows(0, [20, 10, 20])
    assert actions(decisions) == [Action.HOLD, Action.HOLD, Action.RAISE]
    assert decisions[-1].delay_ms == 10  # the least that was wanted
    assert course.raised_s == 60


def test_a_window_that_wants_no_delay_restarts_the_count() -> None:
    decisions, _ = windows(0, [20, 20, 0, 20, 20])
    assert Action.RAISE not in actions(decisions)


def test_two_raises_are_at_least_five_minutes_apart() -> None:
    decisions, _ = windows(0, [10] * 3 + [20] * 10)
    assert [number for number, each in enumerate(decisions) if each.action is Action.RAISE] == [2, 12]
    assert "less than 300 s ago" in decisions[8].sentence


@pytest.mark.parametrize("wish", [0.0, 2.0, 5.0])
def test_a_delay_that_is_much_too_long_is_shortened_at_once(wish: float) -> None:
    (decision,), _ = windows(20, [wish])
    assert decision == Decision(Action.LOWER, wish, f"{wish:g} ms would be right")


def test_one_step_down_waits_for_three_windows_unless_it_is_to_zero() -> None:
    assert actions(windows(20, [10, 10, 10])[0]) == [Action.HOLD, Action.HOLD, Action.LOWER]
    assert actions(windows(0.5, [0])[0]) == [Action.LOWER]


def test_a_late_window_halves_the_delay_at_once_and_bars_the_old_one() -> None:
    (decision,), course = windows(20, [20], window=LATE)
    assert (decision.action, decision.delay_ms) == (Action.HALVE, 10)
    assert "120" in decision.sentence
    assert course.barred_ms == 20
    decisions, _ = windows(10, [20] * 20, course)
    assert actions(decisions) == [Action.HOLD] * 20
    assert "20 ms failed" in decisions[-1].sentence


def test_a_delay_that_could_not_have_made_the_difference_may_be_tried_again() -> None:
    overloaded = replace(WINDOW, late_ms=6000.0)
    (decision,), course = windows(0.5, [0.5], window=overloaded)
    assert (decision.action, decision.delay_ms) == (Action.HALVE, 0)
    assert actions(windows(0, [50, 50, 50], course)[0]) == [Action.HOLD, Action.HOLD, Action.RAISE]


def test_lateness_without_a_delay_changes_nothing() -> None:
    (decision,), _ = windows(0, [0], window=LATE)
    assert decision.action is Action.HOLD
    assert "which this delay does not cause" in decision.sentence
    assert actions(windows(0, [20, 20, 20, 20], window=LATE)[0]) == [Action.HOLD] * 4


def test_a_delay_within_which_no_request_joins_is_removed() -> None:
    alone = replace(WINDOW, executions=5900)
    (decision,), course = windows(20, [20], window=alone)
    assert (decision.action, decision.delay_ms) == (Action.LOWER, 0)
    assert course.barred_ms == 20


def test_a_delay_too_short_to_expect_joins_is_not_blamed_for_their_lack() -> None:
    alone = replace(WINDOW, executions=6000)
    decisions, _ = windows(0.5, [50, 50, 50], window=alone)
    assert actions(decisions) == [Action.HOLD, Action.HOLD, Action.RAISE]


def tried(before: Window, after: Window) -> tuple[Decision, Course]:
    course = Course(trial=Trial(0, 20, before), raised_s=0)
    return decide(Moment(20, 60.0, PACE), aim(20), after, course)


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (replace(WINDOW, executions=2950), "no gain"),
        (replace(WINDOW, executions=1000, busy_ms=20_000), "of the model's time"),
        (replace(WINDOW, executions=1000, failures=100), "failed"),
        (replace(WINDOW, executions=1000, late_ms=101), "more than 101 ms, 100 ms allowed"),
        (replace(WINDOW, requests=2000, rows=2000, executions=2000), "hardly any request joins"),
    ],
)
def test_a_change_for_the_worse_is_undone_and_not_retried(after: Window, why: str) -> None:
    decision, course = tried(WINDOW, after)
    assert (decision.action, decision.delay_ms) == (Action.UNDO, 0)
    assert why in decision.sentence
    assert course.trial is None
    assert course.barred_ms == 20
    assert course.barred_until_s == 60 + PACE.barred_s


def test_a_change_for_the_better_stays() -> None:
    decision, course = tried(WINDOW, replace(WINDOW, executions=1000, busy_ms=9_000))
    assert decision.action is Action.HOLD
    assert course.trial is None


def test_less_traffic_than_before_gives_no_verdict() -> None:
    decision, _ = tried(WINDOW, replace(WINDOW, requests=600, rows=600, executions=300))
    assert decision.action is Action.HOLD


def test_a_held_back_change_says_what_it_waits_for() -> None:
    course = Course(wishes=(20, 20))
    moment = Moment(0, 90.0, PACE, waits_for="a rollout is in progress")
    decision, course = decide(moment, aim(20), WINDOW, course)
    assert decision.action is Action.HOLD
    assert "a rollout is in progress" in decision.sentence
    decision, _ = decide(replace(moment, waits_for=""), aim(20), WINDOW, course)
    assert decision.action is Action.RAISE


def test_with_too_few_samples_tritons_mean_decides_lateness() -> None:
    unseen = replace(WINDOW, late_ms=None)
    assert not unseen.is_late
    assert replace(unseen, mean_ms=101).is_late
    assert not replace(unseen, mean_ms=101, requests=5).is_late


steps = st.sampled_from(LADDER_MS)
seen = st.builds(
    Window,
    st.just(30.0),
    st.integers(0, 6000),
    st.integers(0, 6000),
    st.integers(0, 6000),
    st.integers(0, 100),
    st.floats(0, 30_000),
    st.floats(0, 200),
    st.none() | st.floats(0, 200),
    st.just(100.0),
    st.just(100.0),
)


@settings(deadline=None)
@given(steps, st.lists(st.tuples(steps, seen), max_size=60))
def test_delays_rise_rarely_and_only_to_what_three_windows_wanted(
    delay_ms: float, story: list[tuple[float, Window]]
) -> None:
    course, raised, wishes = Course(), -inf, []
    for number, (wish, window) in enumerate(story):
        now_s = 30.0 * number
        wishes.append(wish)
        decision, course = decide(Moment(delay_ms, now_s, PACE), aim(wish), window, course)
        assert decision.sentence
        if decision.action is Action.RAISE:
            assert now_s - raised >= PACE.between_raises_s
            assert delay_ms < decision.delay_ms <= min(wishes[-3:])
            assert not window.is_late
            raised = now_s
        elif decision.action is Action.HOLD:
            assert decision.delay_ms == delay_ms
            assert wish > 0 or delay_ms == 0  # what nobody needs is gone after one window
        else:
            assert decision.delay_ms < delay_ms
        delay_ms = decision.delay_ms
