"""Rollouts simulated request by request: what is broken is found in time, and what is not is left alone."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.releases.canary import ArmStats, Plan, Progress, Sample, Verdict, decide, findings
from router.releases.evidence import Proportion, Spread, log_evidence_of_more, log_evidence_of_shift

PLAN = Plan(min_requests=10_000)  # never over: only what is found against the canary counts
IN_TIME = 200


def sample(
    chance: random.Random,
    errors: float = 0.0,
    slower: float = 1.0,
    longer: float = 1.0,
    refusals: float = 0.01,
) -> Sample:
    return Sample(
        failed=chance.random() < errors,
        first_token_s=0.1 * slower * chance.lognormvariate(0, 0.4),
        between_tokens_s=0.02 * slower * chance.lognormvariate(0, 0.3),
        tokens=max(1, int(120 * longer * chance.lognormvariate(0, 0.8))),
        refused=chance.random() < refusals,
    )


def requests_until_rollback(seed: int, canary: dict[str, float], stable_errors: float = 0.0) -> int | None:
    """How many requests the canary answered before it was taken back, of a fifth of the traffic."""
    chance = random.Random(seed)
    arms = {"stable": ArmStats(), "canary": ArmStats()}
    for number in range(1, 601):
        for _ in range(4):
            arms["stable"] = arms["stable"].with_one(sample(chance, stable_errors))
        arms["canary"] = arms["canary"].with_one(sample(chance, **{"errors": stable_errors, **canary}))
        found = decide(PLAN, Progress(), arms["stable"], arms["canary"], 0, 0.0)
        if found.verdict is Verdict.ROLL_BACK:
            return number
    return None


@pytest.mark.parametrize("seed", range(20))
def test_twenty_identical_canaries_are_never_taken_back(seed: int) -> None:
    assert requests_until_rollback(seed, {}, stable_errors=0.01 if seed % 2 else 0.0) is None


@pytest.mark.parametrize(
    "broken",
    [{"slower": 2.0}, {"errors": 0.05}, {"errors": 1.0}, {"longer": 3.0}, {"longer": 0.2}, {"refusals": 0.4}],
    ids=str,
)
def test_a_broken_canary_is_taken_back_in_time(broken: dict[str, float]) -> None:
    """Nine of ten within 200 of its requests, and all of them soon after."""
    taken = [requests_until_rollback(seed, broken) for seed in range(20)]
    assert all(each is not None for each in taken)
    assert sum(each is not None and each <= IN_TIME for each in taken) >= 18


@given(st.integers(0, 500), st.integers(0, 500), st.floats(0, 1))
def test_the_more_hits_the_more_evidence(hits: int, misses: int, allowed: float) -> None:
    fewer, more = Proportion(hits, hits + misses + 1), Proportion(hits + 1, hits + misses + 1)
    assert log_evidence_of_more(fewer, allowed) <= log_evidence_of_more(more, allowed) + 1e-9
    assert math.isfinite(log_evidence_of_more(more, allowed))


@given(st.floats(0.001, 0.3), st.integers(0, 2**32))
def test_a_rate_that_is_allowed_seldom_looks_bad_however_often_one_looks(rate: float, seed: int) -> None:
    """An e-value: the chance to ever reach 1,000 is one in a thousand."""
    chance, counted = random.Random(seed), Proportion()
    for _ in range(300):
        counted = counted.with_one(chance.random() < rate)
        assert log_evidence_of_more(counted, rate) < math.log(1e6)


@given(st.lists(st.floats(-20, 20), min_size=2, max_size=50))
def test_numbers_one_by_one_give_the_mean_and_variance_of_all(values: list[float]) -> None:
    spread = Spread()
    for value in values:
        spread = spread.with_one(value)
    mean = sum(values) / len(values)
    assert spread.mean == pytest.approx(mean, abs=1e-6)
    assert spread.variance == pytest.approx(
        sum((value - mean) ** 2 for value in values) / (len(values) - 1), abs=1e-6
    )


@given(st.floats(-5, 5), st.integers(2, 1000))
def test_no_difference_is_no_evidence(mean: float, count: int) -> None:
    arm = Spread(count, mean, 0.1 * count)
    assert log_evidence_of_shift(arm, arm, 0.2) <= 0.0


def test_a_rollout_goes_on_by_steps_and_each_waits_its_time() -> None:
    plan = Plan(min_requests=10, min_duration_s=60)
    good = ArmStats(errors=Proportion(0, 1000))
    at_first = decide(plan, Progress(), good, good, 0, 0.0)
    assert (at_first.verdict, at_first.reason) == (
        Verdict.WAIT,
        "step 1 needs 10 more requests and 60 s more",
    )
    waited = Progress(step_requests=10)
    assert decide(plan, waited, good, good, 0, 61.0).verdict is Verdict.ADVANCE
    assert decide(plan, replace(waited, step=3), good, good, 0, 61.0).verdict is Verdict.PROMOTE
    assert decide(plan, replace(waited, paused=True), good, good, 0, 61.0).verdict is Verdict.WAIT


def test_a_failed_golden_prompt_is_reason_enough_even_while_paused() -> None:
    found = decide(PLAN, Progress(paused=True), ArmStats(), ArmStats(), 1, 0.0)
    assert (found.verdict, found.reason) == (Verdict.ROLL_BACK, "golden prompts: 1 failed, 0 are allowed")


def test_the_reason_names_the_gate_and_its_figures() -> None:
    stable, canary = ArmStats(errors=Proportion(1, 1000)), ArmStats(errors=Proportion(40, 100))
    found = decide(PLAN, Progress(), stable, canary, 0, 0.0)
    assert found.verdict is Verdict.ROLL_BACK
    assert found.reason.startswith("errors: 40.00% against 0.10%, odds 1 to ")
    assert len(findings(stable, canary, PLAN.tolerance)) == 6


@pytest.mark.parametrize("weights", [(), (0.5, 0.1, 1.0), (0.0, 1.0), (0.1, 0.5)])
def test_a_plan_that_makes_no_sense_is_refused(weights: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="rollout"):
        Plan(weights=weights)
