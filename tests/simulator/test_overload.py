"""What must hold when more is asked for than can be done: the same code that serves, on simulated engines."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from loadtest.traces import Trace, tiers_by_tenant
from python_backend.costs.step_cost import StepCost
from python_backend.wire.tiers import Tier
from router.admission.demand import Reason
from router.admission.queue import TIER_WEIGHTS
from simulator.report import Figures, is_good
from simulator.scenario import Admission, Retries
from tests.simulator.traffic import (
    CAPACITY_PER_S,
    OBJECTIVES,
    SCENARIO,
    arena,
    arriving,
    code,
    flood,
    played,
)

LASTS_S = 100.0
# For prompts of some 2,000 tokens: the burst is several seconds of its work.
QUICK = replace(
    SCENARIO.shape,
    cost=replace(SCENARIO.shape.cost, prefill_token_ms=0.03),
    step_tokens=2048,
    kv_tokens=163_840,
)


@cache
def at(
    times_capacity: float, admission: Admission = Admission.OBJECTIVES, tells_tiers: bool = True
) -> Figures:
    lasts_s = LASTS_S if times_capacity > 2 else 2 * LASTS_S  # forecasts learn from requests, not from time
    trace = arriving(times_capacity * CAPACITY_PER_S, lasts_s)
    return played(trace, replace(SCENARIO, admission=admission, tells_tiers=tells_tiers))[1]


def test_goodput_at_ten_times_the_capacity_is_that_of_its_peak() -> None:
    peak = max(at(times).goodput_per_s for times in (0.7, 1.0, 1.5, 3.0))
    assert peak > 0.8 * CAPACITY_PER_S
    assert at(10.0).goodput_per_s >= 0.95 * peak


def test_goodput_holds_when_many_times_the_capacity_comes_at_once_after_a_calm_while() -> None:
    shape = replace(QUICK, cost=StepCost(6.5, 0.03, 0.03), slots=48, kv_tokens=32_768, block_tokens=64)
    quick = {tier: replace(each, first_token_s=1.0) for tier, each in OBJECTIVES.items()}
    tiers = ["interactive", "standard", "batch", "standard", "interactive"]
    trace = arena().with_tiers(tiers_by_tenant(tiers))
    surge = arriving(145.0, 12.0, trace=trace).requests
    calm = arriving(12.0, 30.0, trace=trace)
    trace = calm.and_also(replace(each, at_s=30.0 + each.at_s) for each in surge)
    requests = played(trace, replace(SCENARIO, shape=shape, objectives=quick))[0].requests
    good = sum(is_good(each, quick[each.tier]) for each in requests if each.at_s >= 30.0)
    assert good / 12.0 >= 18.0  # of some 24 that it can do


def test_first_come_first_served_breaks_down_where_admission_by_objectives_does_not() -> None:
    ours = at(3.0).goodput_per_s
    assert at(3.0, Admission.FIRST_COME).goodput_per_s < 0.8 * ours
    assert at(3.0, Admission.FIRST_COME, tells_tiers=False).goodput_per_s < 0.3 * ours
    assert at(3.0, Admission.CAP).goodput_per_s < 0.3 * ours


def test_without_tiers_the_engine_serves_all_alike() -> None:
    trace = arriving(3 * CAPACITY_PER_S, 40.0)
    scenario = replace(SCENARIO, admission=Admission.FIRST_COME, tells_tiers=False)
    tiers = played(trace, scenario)[1].tiers
    middle_s = [tier.first_token_p50_s or 0.0 for tier in tiers]
    assert max(middle_s) < 1.2 * min(middle_s)


@pytest.mark.parametrize("times_capacity", [1.5, 3.0, 10.0])
def test_admitted_requests_get_their_first_token_in_time(times_capacity: float) -> None:
    for tier, objective in OBJECTIVES.items():
        p95_s = at(times_capacity).tier(tier).first_token_p95_s
        assert p95_s is not None
        assert objective.first_token_s is not None
        assert p95_s <= objective.first_token_s, tier


@pytest.mark.parametrize("times_capacity", [3.0, 10.0])
def test_every_tier_gets_its_share_of_the_engine(times_capacity: float) -> None:
    for tier, weight in TIER_WEIGHTS.items():
        assert at(times_capacity).tier(tier).work_share >= 0.8 * weight, tier


def test_most_requests_that_would_time_out_are_refused_at_once() -> None:
    figures = at(10.0)
    too_late = sum(tier.too_late for tier in figures.tiers)
    assert too_late <= 0.1 * figures.refused


@pytest.mark.parametrize("times_capacity", [0.7, 1.5, 3.0, 10.0])
def test_nine_of_ten_forecasts_are_kept(times_capacity: float) -> None:
    covered_share = at(times_capacity).covered_share
    assert covered_share is not None
    assert 0.85 <= covered_share <= 0.95


def test_clients_that_retry_at_once_however_often_change_nothing() -> None:
    storm = replace(SCENARIO, retries=Retries(times=5, after_s=0.1))
    simulated, figures = played(arriving(10.0 * CAPACITY_PER_S, 0.6 * LASTS_S), storm)
    calm = played(arriving(10.0 * CAPACITY_PER_S, 0.6 * LASTS_S))[1]
    assert Counter(request.attempt for request in simulated.requests)[5] > 1000
    assert figures.goodput_per_s >= 0.95 * calm.goodput_per_s


def test_tenants_that_ask_for_far_too_much_get_about_the_same_however_often_they_ask() -> None:
    """Those who ask for a few requests only have nothing to compare."""
    shares = [each.of_fair_share for each in at(10.0).tenants if each.offered >= 25]
    assert len(shares) > 20
    assert sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares)) >= 0.8


@pytest.mark.parametrize("tier", list(Tier))
def test_a_tenant_that_floods_the_shared_tier_costs_the_others_little(tier: Tier) -> None:
    others = arriving(0.8 * CAPACITY_PER_S, LASTS_S, {tier.label: 1.0})
    assert _left_to_others(others, tier) >= 0.9


@pytest.mark.parametrize("tier", [Tier.STANDARD, Tier.BATCH])
def test_a_tenant_that_floods_one_tier_costs_the_others_little_in_any(tier: Tier) -> None:
    assert _left_to_others(arriving(0.8 * CAPACITY_PER_S, LASTS_S), tier) >= 0.9


def _left_to_others(others: Trace, tier: Tier) -> float:
    alone = played(others)[1]
    noisy = flood("noisy", 3 * CAPACITY_PER_S, LASTS_S, tier)
    beside = played(others.and_also(noisy))[1]
    kept = sum(beside.tenant(name).good for name in others.tenants)
    return kept / sum(alone.tenant(name).good for name in others.tenants)


def test_ten_seconds_after_a_burst_almost_all_answers_are_good_again() -> None:
    trace = code()
    busiest_s = Counter(int(each.at_s) for each in trace.requests).most_common(1)[0][0]
    begin_s = max(0.0, busiest_s - 60.0)
    near = [each for each in trace.requests if begin_s <= each.at_s <= busiest_s + 60.0]
    assert sum(busiest_s <= each.at_s < busiest_s + 1 for each in near) > 40
    cut = Trace("burst", tuple(replace(each, at_s=each.at_s - begin_s) for each in near)).clamp(8192)
    simulated, figures = played(cut, replace(SCENARIO, shape=QUICK))
    later = [request for request in simulated.requests if request.at_s >= busiest_s - begin_s + 11.0]
    assert len(later) > 50
    assert sum(is_good(request, OBJECTIVES[Tier.STANDARD]) for request in later) >= 0.95 * len(later)
    assert {request.refused for request in simulated.requests} <= {None, Reason.BUSY, Reason.TOO_LATE}
    assert figures.refused > 0


def test_a_simulation_is_deterministic() -> None:
    trace = arriving(2 * CAPACITY_PER_S, 30.0)
    assert played(trace)[1] == played(trace)[1]


def test_every_request_ends_exactly_once() -> None:
    simulated, _ = played(arriving(3 * CAPACITY_PER_S, 60.0, trace=arena()))
    for request in simulated.requests:
        assert (request.ended_s is None) != (request.refused is None)
        assert request.refused is not None or request.generated == request.output_tokens
    assert [engine.report().used_blocks for engine in simulated.engines] == [0]
