from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.control.releases.canary import Decision, Verdict
from router.control.releases.plan import Plan
from router.control.releases.shadow_gate import ShadowAnswers, judge_likeness

PLAN = Plan(min_likeness=0.9, min_shadow_answers=20)


def test_without_a_wish_for_likeness_nothing_is_waited_for() -> None:
    assert judge_likeness(Plan(), ShadowAnswers()) is None


def test_a_canary_waits_for_as_many_shadow_answers_as_are_missing() -> None:
    waits = judge_likeness(PLAN, ShadowAnswers(12, 1.0, is_on=True))
    assert waits == Decision(Verdict.WAIT, "waiting for 8 more shadow answers")
    alone = judge_likeness(PLAN, ShadowAnswers(12, 1.0))
    assert alone == Decision(Verdict.WAIT, "waiting for 8 more shadow answers, but it is no longer a shadow")


def test_answers_that_are_too_unlike_end_the_rollout_with_the_figures() -> None:
    assert judge_likeness(PLAN, ShadowAnswers(20, 0.713)) == Decision(
        Verdict.ROLL_BACK, "answers: 71.3% alike over 20 shadow answers, at least 90% required"
    )


@given(st.integers(20, 1000), st.floats(0, 1))
def test_with_enough_answers_their_likeness_alone_decides(count: int, likeness: float) -> None:
    decision = judge_likeness(PLAN, ShadowAnswers(count, likeness))
    assert (decision is None) is (likeness >= 0.9)
