from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from router.control.releases.arm_stats import ArmStats, Measured, Sample, merge_stats
from router.control.releases.canary import Decision, Verdict, decide
from router.control.releases.canary_checks import findings
from router.control.releases.evidence import Proportion
from router.control.releases.plan import OnTimeout, Plan, Progress, Tolerance
from tests.tiers import examples

PLAN = Plan(min_requests=10, min_duration_s=60)
TRIED = Progress(golden_step=9)
GOOD = ArmStats(errors=Proportion(0, 1000))


def counted(hits: int, total: int) -> ArmStats:
    return ArmStats(errors=Proportion(hits, total))


def told(
    canary: ArmStats = GOOD, stable: ArmStats = GOOD, progress: Progress = TRIED, now_s: float = 61.0
) -> Decision:
    steps = ((ArmStats(), ArmStats()),) * progress.step + ((canary, stable),)
    return decide(PLAN, progress, Measured(steps), now_s)


def test_a_rollout_advances_by_steps_and_each_waits_its_time() -> None:
    first = told(counted(0, 4), now_s=1.0)
    assert (first.verdict, first.reason) == (Verdict.WAIT, "step 1 needs 6 more requests and 59 s more")
    assert told(counted(0, 9)).reason == "step 1 needs 1 more requests"
    assert told().verdict is Verdict.ADVANCE
    assert told().reason == "shown to be within its tolerances (errors): on to 5% of the traffic"
    assert told(progress=replace(TRIED, step=3)).verdict is Verdict.PROMOTE


def test_a_paused_rollout_waits_and_still_rolls_back() -> None:
    paused = replace(TRIED, paused=True)
    assert told(progress=paused) == Decision(Verdict.WAIT, "paused")
    assert told(counted(50, 100), progress=paused).verdict is Verdict.ROLL_BACK


def test_a_step_is_not_over_before_its_golden_prompts_were_tried() -> None:
    found = told(progress=Progress(golden_step=-1))
    assert (found.verdict, found.reason) == (Verdict.WAIT, "step 1 is waiting for its golden prompts")


def test_a_failed_golden_prompt_rolls_back_even_while_paused() -> None:
    failed = replace(TRIED, paused=True, golden_failed=1, golden_note="'2+2' got '5'")
    found = told(progress=failed)
    assert found.verdict is Verdict.ROLL_BACK
    assert found.reason == "golden prompts: 1 failed, 0 allowed ('2+2' got '5')"


def test_the_reason_for_a_rollback_names_the_check_and_its_numbers() -> None:
    found = told(counted(5, 96), counted(4, 4210))
    assert found == Decision(Verdict.ROLL_BACK, "errors: 5.2% of 96 against 0.1% of 4,210")


def test_a_canary_whose_first_requests_all_fail_rolls_back_whatever_the_stable_release_does() -> None:
    hopeless = counted(500, 500)
    assert told(counted(19, 19), hopeless, now_s=0).verdict is Verdict.WAIT
    found = told(counted(20, 20), hopeless, now_s=0)
    assert found == Decision(Verdict.ROLL_BACK, "errors: all of the canary's first 20 requests failed")


def test_a_canary_with_all_traffic_from_the_start_is_judged_against_presumed_rates() -> None:
    plan = Plan(weights=(1.0,), min_requests=10)
    half = Measured(((counted(20, 40), ArmStats()),))
    assert decide(plan, TRIED, half, 61.0).verdict is Verdict.ROLL_BACK
    assert decide(plan, TRIED, Measured(((counted(2, 40), ArmStats()),)), 61.0).verdict is Verdict.PROMOTE


def test_a_few_errors_alone_do_not_roll_back() -> None:
    assert told(counted(2, 2)).verdict is Verdict.WAIT
    assert told(counted(3, 3)).verdict is Verdict.ROLL_BACK


def test_a_rollout_without_traffic_waits_and_says_so() -> None:
    assert not told(ArmStats(), ArmStats(), now_s=59).is_idle
    found = told(ArmStats(), ArmStats(), now_s=600)
    assert found.verdict is Verdict.WAIT
    assert found.is_idle
    assert found.reason == "step 1 has had no request in 600 s: it continues when requests come"


def test_a_canary_without_requests_while_the_stable_has_some_is_reported_as_such() -> None:
    found = told(ArmStats(), counted(0, 4210), now_s=600)
    assert found.is_idle
    assert found.reason.startswith("the canary got none of the 4,210 requests of step 1 in 600 s")


def test_a_bad_hour_of_both_arms_is_not_held_against_the_canary() -> None:
    """In the first step all was well; in the second one tenth of what was asked failed, in both arms."""
    early = (counted(0, 50), counted(0, 5000))
    measured = Measured((early, (counted(300, 3000), counted(900, 9000))))
    assert decide(PLAN, replace(TRIED, step=1), measured, 61.0).verdict is Verdict.ADVANCE


def test_in_the_last_step_the_stable_release_of_earlier_steps_is_the_baseline() -> None:
    early = (counted(0, 300), counted(2, 900))
    last = replace(TRIED, step=1)
    plan = Plan(weights=(0.25, 1.0), min_requests=10)
    worse = Measured((early, (counted(40, 600), ArmStats())))
    assert decide(plan, last, worse, 61.0).verdict is Verdict.ROLL_BACK
    as_before = Measured((early, (counted(2, 600), ArmStats())))
    assert decide(plan, last, as_before, 61.0).verdict is Verdict.PROMOTE


def timed(slower: float, seconds: int = 60) -> ArmStats:
    samples = [
        Sample(False, 0.1 * slower * (1 + each % 3), 0.01 * slower, 100, False, at_s=each / 4)
        for each in range(seconds * 4)
    ]
    return ArmStats().with_all(samples)


def test_the_reason_for_a_slow_canary_gives_times_and_their_ratio() -> None:
    found = told(timed(2.0), timed(1.0))
    assert found.verdict is Verdict.ROLL_BACK
    assert found.reason == (
        "inter-token latency: 20.0 ms of 240 against 10.0 ms of 240, "
        "2.00 times the stable release's at the same time"
    )


def test_latencies_are_not_compared_where_the_canary_has_more_load_than_the_stable_release() -> None:
    plan = Plan(weights=(0.5, 0.9, 1.0), min_requests=10)
    slow = (timed(2.0), timed(1.0))
    assert decide(plan, TRIED, Measured((slow,)), 61.0).verdict is Verdict.ROLL_BACK
    at_ninety = Measured(((timed(1.0), timed(1.0)), slow))
    assert decide(plan, replace(TRIED, step=1), at_ninety, 61.0).verdict is Verdict.ADVANCE


def test_a_canary_that_cannot_bear_the_full_traffic_rolls_back() -> None:
    """Alone it is held against the stable release of the steps before, which had as much to do."""
    plan = Plan(weights=(0.05, 1.0), min_requests=10)
    beside, last = (timed(1.0), timed(1.0)), replace(TRIED, step=1)
    crushed = decide(plan, last, Measured((beside, (timed(20.0), ArmStats()))), 61.0)
    assert crushed.verdict is Verdict.ROLL_BACK
    assert crushed.reason.endswith(
        "with most of the traffic 20.00 times the stable release's in earlier steps"
    )
    busier = decide(plan, last, Measured((beside, (timed(2.0), ArmStats()))), 61.0)
    assert busier.verdict is Verdict.PROMOTE


def noisy(
    chance: Random, seconds: float, per_s: float, begin_s: float = 0.0, slower: float = 1.0
) -> ArmStats:
    """What differs by chance, as much as requests do."""
    return ArmStats().with_all(
        Sample(
            False,
            0.1 * slower * chance.lognormvariate(0, 0.5),
            0.01 * slower * chance.lognormvariate(0, 0.4),
            max(1, int(100 * chance.lognormvariate(0, 0.8))),
            chance.random() < 0.3,
            at_s=begin_s + each / per_s,
        )
        for each in range(int(seconds * per_s))
    )


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 10**6), st.floats(2, 10), st.floats(20, 300))
def test_with_all_of_the_traffic_no_canary_that_is_as_it_was_waits_for_what_nobody_can_show_any_more(
    seed: int, per_s: float, seconds: float
) -> None:
    """However few requests the steps before had: four minutes after it left them it is promoted."""
    chance = Random(seed)
    before = (noisy(chance, seconds, per_s / 2), noisy(chance, seconds, per_s / 2))
    plan = Plan(weights=(0.5, 1.0), min_requests=10, min_duration_s=15)
    left = decide(plan, TRIED, Measured((before,)), seconds)
    assume(left.verdict is Verdict.ADVANCE)
    late = noisy(chance, 2, per_s / 2, seconds)  # answers that were still on their way
    before = (merge_stats(before[0], late), before[1])
    alone = noisy(chance, 240, per_s, seconds)
    last = replace(TRIED, step=1, step_began_s=seconds)
    found = decide(plan, last, Measured((before, (alone, ArmStats()))), seconds + 240)
    assert found.verdict is Verdict.PROMOTE, found.reason


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(0, 10**6), st.floats(5, 12), st.floats(15, 300))
def test_one_that_has_become_much_slower_with_all_of_the_traffic_is_never_promoted(
    seed: int, slower: float, alone_s: float
) -> None:
    chance = Random(seed)
    before = (noisy(chance, 200, 4), noisy(chance, 200, 4))
    plan = Plan(weights=(0.5, 1.0), min_requests=10, min_duration_s=15)
    alone = noisy(chance, alone_s, 8, 200, slower)
    last = replace(TRIED, step=1, step_began_s=200)
    found = decide(plan, last, Measured((before, (alone, ArmStats()))), 200 + alone_s)
    assert found.verdict is not Verdict.PROMOTE


@pytest.mark.parametrize("on_timeout", list(OnTimeout))
def test_the_time_limit_holds_with_all_of_the_traffic_too(on_timeout: OnTimeout) -> None:
    before, few = (timed(1.0), timed(1.0)), (timed(1.0, 2), ArmStats())
    plan = Plan(weights=(0.5, 1.0), min_requests=5, min_duration_s=1, time_limit_s=60, on_timeout=on_timeout)
    last = replace(TRIED, step=1)
    verdicts = {OnTimeout.HOLD: Verdict.WAIT, OnTimeout.ROLL_BACK: Verdict.ROLL_BACK}
    assert decide(plan, last, Measured((before, few)), 59.0).verdict is Verdict.WAIT
    found = decide(plan, last, Measured((before, few)), 61.0)
    assert found.verdict is verdicts.get(on_timeout, Verdict.PROMOTE)
    assert found.is_held == (on_timeout is OnTimeout.HOLD)


def test_what_one_step_has_shown_counts_in_the_next() -> None:
    """A slow step is not forgotten, and neither is a good one."""
    second = replace(TRIED, step=1)
    slow_then_good = Measured(((timed(2.0), timed(1.0)), (timed(1.0), timed(1.0))))
    found = decide(PLAN, second, slow_then_good, 61.0)
    assert found.verdict is Verdict.WAIT
    assert found.reason.endswith("to decide: time to first token, inter-token latency")
    good_then_little = Measured(((timed(1.0, 240), timed(1.0, 240)), (timed(1.0, 3), timed(1.0, 3))))
    assert decide(PLAN, second, good_then_little, 61.0).verdict is Verdict.ADVANCE


def test_a_canary_that_nothing_is_known_of_waits_and_says_for_how_long() -> None:
    few = (timed(1.0, 3), timed(1.0, 3))
    found = decide(PLAN, TRIED, Measured((few,)), 61.0)
    assert found.verdict is Verdict.WAIT
    assert found.reason.startswith("step 1 needs about ")
    assert "more requests of the canary" in found.reason


@pytest.mark.parametrize(
    ("on_timeout", "after_h", "verdict"),
    [
        (OnTimeout.HOLD, 25, Verdict.WAIT),
        (OnTimeout.HOLD, 49, Verdict.ROLL_BACK),
        (OnTimeout.ROLL_BACK, 25, Verdict.ROLL_BACK),
        (OnTimeout.PROMOTE, 25, Verdict.ADVANCE),
    ],
)
def test_a_step_that_shows_nothing_in_time_ends_as_the_plan_says(
    on_timeout: OnTimeout, after_h: float, verdict: Verdict
) -> None:
    few = Measured(((timed(1.0, 3), timed(1.0, 3)),))
    found = decide(replace(PLAN, on_timeout=on_timeout), TRIED, few, after_h * 3600)
    assert found.verdict is verdict
    assert found.is_held == (verdict is Verdict.WAIT)
    assert (
        "timed out after 24 h without showing that the canary is good enough" in found.reason
        or verdict is Verdict.ADVANCE
    )


def test_the_stable_releases_past_makes_failures_of_the_canary_count_sooner() -> None:
    def told_after(past: Proportion, stable_errors: int = 0) -> Verdict:
        arms = (ArmStats(errors=Proportion(4, 75)), ArmStats(errors=Proportion(stable_errors, 75)))
        return decide(PLAN, TRIED, Measured((arms,), past), 10.0).verdict

    assert told_after(Proportion()) is Verdict.WAIT
    assert told_after(Proportion(0, 1000)) is Verdict.ROLL_BACK
    assert told_after(Proportion(30, 1000)) is Verdict.WAIT, "it never was any better"
    assert told_after(Proportion(0, 1000), stable_errors=2) is Verdict.WAIT, "both have a bad hour"


@given(st.integers(0, 40), st.integers(80, 400), st.integers(1, 9), st.integers(0, 1000))
def test_no_past_speaks_against_a_canary_that_fails_no_more_often_than_the_stable_release_does_now(
    hits: int, total: int, times: int, past_hits: int
) -> None:
    same = ArmStats(errors=Proportion(hits * times, total * times))
    arms = (ArmStats(errors=Proportion(hits, total)), same)
    found = findings(PLAN, Measured((arms,), Proportion(past_hits, 1000)))
    assert found[0].against == 0


def test_a_canary_that_misses_the_objective_which_the_stable_release_keeps_rolls_back() -> None:
    def arm(late: int, total: int) -> ArmStats:
        return ArmStats(errors=Proportion(0, total), late_first=Proportion(late, total))

    kept, missed = arm(2, 400), arm(30, 100)
    found = told(missed, kept)
    assert found.verdict is Verdict.ROLL_BACK
    assert found.reason == "objective for the first token: missed by 30.0% of 100 against 0.5% of 400"
    assert told(missed, arm(200, 400)).verdict is not Verdict.ROLL_BACK
    assert told(arm(4, 100), kept).verdict is not Verdict.ROLL_BACK


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 300), st.integers(0, 5000), st.booleans())
def test_every_measurement_gives_a_decision_with_a_reason(
    fewer: int, more: int, stable_fails: int, stable_rest: int, paused: bool
) -> None:
    canary, stable = counted(fewer, fewer + more), counted(stable_fails, stable_fails + stable_rest)
    found = told(canary, stable, replace(TRIED, paused=paused))
    assert found.reason
    if canary.errors.rate <= stable.errors.rate and canary.errors.rate != 1.0:
        assert found.verdict is not Verdict.ROLL_BACK


@pytest.mark.parametrize("weights", [(), (0.5, 0.1, 1.0), (0.0, 1.0), (0.1, 0.5), (float("nan"), 1.0)])
def test_an_invalid_plan_is_refused(weights: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="rollout"):
        Plan(weights=weights)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"min_requests": -1}, "-1 requests; allowed: 0 and more"),
        ({"min_duration_s": float("nan")}, "lasts nan s; allowed: 0 and more"),
        ({"alpha": 1.0}, "above 0 and below 1"),
    ],
)
def test_a_refused_plan_names_the_allowed_values(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(Plan(), **wrong)


@pytest.mark.parametrize(
    "wrong",
    [{"error_rate": 1.0}, {"refusal_rate": -0.1}, {"latency_ratio": 0.9}, {"length_ratio": float("nan")}],
    ids=str,
)
def test_a_refused_tolerance_names_the_allowed_values(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="allowed: "):
        Tolerance(**wrong)


def test_missing_measurements_change_no_statistic() -> None:
    stats = ArmStats().with_one(Sample(False, float("nan"), 0.0, None, None))
    assert stats == ArmStats(errors=Proportion(0, 1))
    assert ArmStats().with_one(Sample(True, 0.1, 0.1, 5, True)) == ArmStats(errors=Proportion(1, 1))


def test_a_canary_that_has_all_requests_is_not_promoted_without_a_baseline() -> None:
    found = told(counted(0, 1006), counted(0, 0))
    assert (found.verdict, found.is_idle) == (Verdict.WAIT, True)
    assert found.reason.startswith("the stable release got none of the 1,006 requests of step 1")
