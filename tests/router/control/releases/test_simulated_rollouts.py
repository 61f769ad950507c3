"""Rollouts simulated request by request: what is broken is found in time, and what is not is left alone."""

from __future__ import annotations

import pytest

from router.control.releases.canary import Verdict
from router.control.releases.plan import Plan
from simulator.rollouts import Release, Rollout, World
from tests.tiers import few

SHORT = Plan(weights=(0.05, 0.25, 1.0), min_requests=30, min_duration_s=30)
UNEVEN = Plan(weights=(0.01, 1.0), min_requests=30, min_duration_s=30)
NEVER_OVER = Plan(weights=(0.2, 1.0), min_requests=1_000_000)
IN_TIME_REQUESTS, IN_TIME_S = 200, 60.0

# What makes honest measurements differ; each of it hits both arms alike.
NOISE = {
    "calm": World(),
    "heavy tails": World(deviation=0.6, tail=0.1),
    "load that comes and goes": World(load=lambda at_s: 3.0 if 20 < at_s % 60 < 50 else 1.0),
    "slow phases of the machine": World(shared_phases=True),
    "an outage": World(outage=lambda at_s: 40 < at_s < 44),
}


@pytest.fixture
def seeds(thorough: bool) -> range:
    return range(4 if thorough else 2)


@pytest.mark.parametrize("noise", few(NOISE, ["heavy tails", "slow phases of the machine"]))
def test_identical_canaries_are_all_promoted(noise: str, seeds: range) -> None:
    """Half of them beside a stable release that fails 2 % of its requests, as they do themselves."""
    for seed in seeds:
        same = Release(errors=0.02 if seed % 2 else 0.0)
        ended, _, _ = Rollout(seed, same, same, NOISE[noise], SHORT).run()
        assert ended.verdict is Verdict.PROMOTE, ended.reason


@pytest.mark.parametrize("errors", [0.0, 0.02])
def test_an_identical_canary_with_a_hundredth_of_the_requests_is_promoted(errors: float) -> None:
    same = Release(errors=errors)
    ended, _, _ = Rollout(1, same, same, World(rate=40, shared_phases=True), UNEVEN).run(7200)
    assert ended.verdict is Verdict.PROMOTE, ended.reason


@pytest.mark.parametrize("seed", few(range(3), 1))
def test_slow_phases_of_the_canarys_own_are_not_taken_for_a_slow_canary(seed: int) -> None:
    """Three times as slow for ten seconds, now one arm and now the other."""
    ended, _, _ = Rollout(seed, Release(), Release(), World(own_phases=True), SHORT).run()
    assert ended.verdict is not Verdict.ROLL_BACK, ended.reason


BROKEN = {
    "5 % errors": Release(errors=0.05),
    "NaN: every request fails": Release(errors=1.0),
    "everything twice as slow": Release(slower=2.0),
    "tokens twice as slow": Release(slower_tokens=2.0),
    "answers three times as long": Release(longer=3.0),
    "answers a fifth as long": Release(longer=0.2),
    "refuses two of five": Release(refusals=0.4),
}


@pytest.mark.parametrize("noise", ["calm", "slow phases of the machine"])
@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_canary_rolls_back_within_two_hundred_requests_or_a_minute(
    broken: str, noise: str, seeds: range
) -> None:
    runs = [Rollout(seed, BROKEN[broken], world=NOISE[noise], plan=NEVER_OVER).run(300) for seed in seeds]
    assert {ended.verdict for ended, _, _ in runs} == {Verdict.ROLL_BACK}
    late = [run for run in runs if run[1] > IN_TIME_REQUESTS and run[2] > IN_TIME_S]
    assert not late


def test_a_canary_twice_as_slow_is_found_among_few_requests() -> None:
    """One request of a hundred, one of them in two seconds."""
    world = World(rate=50, shared_phases=True)
    plan = Plan(weights=(0.01, 1.0), min_requests=1_000_000)
    ended, requests, _ = Rollout(3, Release(slower=2.0), world=world, plan=plan).run(400)
    assert ended.verdict is Verdict.ROLL_BACK
    assert requests <= IN_TIME_REQUESTS


def test_a_canary_that_breaks_only_under_full_traffic_rolls_back() -> None:
    _, _, promoted_s = Rollout(5, Release(), plan=SHORT).run()
    all_since_s = promoted_s - SHORT.min_duration_s
    trouble = World(outage=lambda at_s: at_s > all_since_s and at_s % 10 < 1)
    ended, _, _ = Rollout(5, Release(), plan=SHORT, world=trouble).run()
    assert ended.verdict is Verdict.ROLL_BACK
    assert ended.reason.startswith("errors: ")


@pytest.mark.parametrize("slower", [1.5, 4.0])
def test_a_slower_canary_is_never_promoted(slower: float, seeds: range) -> None:
    """Asked once in two seconds, in steps that last no longer than they must."""
    plan = Plan(weights=(0.2, 0.5, 1.0), min_requests=20, min_duration_s=20)
    for seed in seeds:
        ended, _, _ = Rollout(seed, Release(slower=slower), world=World(rate=2.0), plan=plan).run(3600)
        assert ended.verdict is Verdict.ROLL_BACK, ended.reason


def test_a_canary_that_is_twice_as_slow_on_equal_prompts_meets_nobody() -> None:
    ended, requests, _ = Rollout(1, Release(slower=2.0), rehearsed=True).run()
    assert (ended.verdict, requests) == (Verdict.ROLL_BACK, 0)
    kept, requests, _ = Rollout(1, Release(), plan=SHORT, rehearsed=True).run()
    assert kept.verdict is Verdict.PROMOTE


MIRRORED = Plan(weights=(0.5, 1.0), mirror_per_s=1.0)
SELDOM = World(rate=0.5, shared_phases=True, load=lambda at_s: 3.0 if 20 < at_s % 60 < 50 else 1.0)


@pytest.mark.parametrize("seed", few(range(3), 1))
def test_a_canary_that_is_seldom_asked_is_decided_by_mirrored_requests_on_a_noisy_machine(seed: int) -> None:
    kept, _, took_s = Rollout(seed, Release(), world=SELDOM, plan=MIRRORED, past_requests=1000).run(3600)
    assert kept.verdict is Verdict.PROMOTE, kept.reason
    assert took_s <= 1800
    back, met, _ = Rollout(seed, Release(slower=1.5), world=SELDOM, plan=MIRRORED).run(3600)
    assert back.verdict is Verdict.ROLL_BACK, back.reason
    assert met <= 400


def test_errors_of_a_canary_are_found_within_a_hundred_requests_where_the_past_is_known() -> None:
    runs = [
        Rollout(seed, Release(errors=0.05), world=World(rate=0.5), plan=plan, past_requests=1000).run(3600)
        for plan in (Plan(weights=(0.5, 1.0)), MIRRORED)
        for seed in range(5)
    ]
    assert {ended.verdict for ended, _, _ in runs} == {Verdict.ROLL_BACK}
    assert sorted(requests for _, requests, _ in runs)[5] <= 100
