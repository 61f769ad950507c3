"""A calm tenant beside one that floods, on an engine that costs what two CPU cores do; and an oracle."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import astuple, replace
from functools import cache

import pytest

from loadtest.percentiles import percentile
from loadtest.traces import Trace, TracedRequest
from python_backend.costs.step_cost import StepCost
from python_backend.wire.tiers import Tier
from router.core.objective import Objective
from simulator.engine import EngineShape
from simulator.request import SimulatedRequest
from simulator.scenario import MODEL, Admission, Scenario
from simulator.simulation import Simulated, simulate
from tests.simulator.traffic import CAPACITY_PER_S, OBJECTIVES, SCENARIO, arriving, played

LASTS_S = 40.0
SHAPE = EngineShape(StepCost(8.2, 1.5, 5.3, 1.0), slots=64, step_tokens=512, kv_tokens=20_480, depth=1)
TARGETS = {tier: Objective(MODEL, tier, first_token_s=2.0, inter_token_s=0.15) for tier in Tier}
CALM = TracedRequest(0.0, 30, 16, "calm", max_tokens=16)
FLOOD = TracedRequest(0.0, 40, 120, "flood", max_tokens=120)


def calm(name: str = "calm") -> list[TracedRequest]:
    """Once a second, when the flood is there already."""
    return [replace(CALM, at_s=3.0 + number, tenant=name) for number in range(int(LASTS_S) - 6)]


def flood(name: str = "flood", tier: Tier = Tier.STANDARD) -> list[TracedRequest]:
    """40 at once, and then several times what there is capacity for."""
    first = [replace(FLOOD, at_s=number / 1000, tenant=name, tier=tier.label) for number in range(40)]
    more = [
        replace(FLOOD, at_s=number / 5, tenant=name, tier=tier.label) for number in range(int(5 * LASTS_S))
    ]
    return [*first, *more]


def play(*requests: TracedRequest, is_cost_kept: bool = True, slower: float = 1.0) -> Simulated:
    """On a machine that is so many times slower than was kept from before."""
    trace = Trace("flood", tuple(sorted(requests, key=lambda each: each.at_s)))
    cost = StepCost(*(slower * each for each in astuple(SHAPE.cost)))
    shape = replace(SHAPE, cost=cost, kept_cost=SHAPE.cost, is_cost_kept=is_cost_kept)
    return simulate(trace, Scenario(shape, objectives=TARGETS))


@cache
def both(is_cost_kept: bool = True) -> Simulated:
    return play(*calm(), *flood(), is_cost_kept=is_cost_kept)


def of(simulated: Simulated, tenant: str) -> list[SimulatedRequest]:
    return [request for request in simulated.requests if request.tenant == tenant]


def first_p95_s(requests: list[SimulatedRequest]) -> float:
    return percentile(sorted((each.first_token_s or 1e9) - each.at_s for each in requests), 0.95)


def whole_p50_s(requests: list[SimulatedRequest]) -> float:
    return percentile(sorted((each.ended_s or 1e9) - each.at_s for each in requests), 0.5)


def tokens_per_s(requests: list[SimulatedRequest], from_s: float, to_s: float) -> float:
    """Of answers, as if their tokens came evenly."""
    tokens = 0.0
    for each in requests:
        if each.first_token_s is not None and each.ended_s is not None:
            inside_s = min(each.ended_s, to_s) - max(each.first_token_s, from_s)
            tokens += each.output_tokens * max(inside_s, 0.0) / (each.ended_s - each.first_token_s)
    return tokens / (to_s - from_s)


@pytest.mark.parametrize("is_cost_kept", [True, False])
def test_a_calm_tenant_is_neither_refused_nor_late_beside_a_flood(is_cost_kept: bool) -> None:
    simulated = both(is_cost_kept)
    assert not [each for each in of(simulated, "calm") if each.refused is not None]
    assert first_p95_s(of(simulated, "calm")) < 0.5
    alone = whole_p50_s(of(play(*calm()), "calm"))
    assert whole_p50_s(of(simulated, "calm")) < 3 * alone


@pytest.mark.parametrize("is_cost_kept", [True, False])
def test_the_inter_token_objective_holds_from_the_first_burst_on(is_cost_kept: bool) -> None:
    for simulated in (both(is_cost_kept), play(*flood(), is_cost_kept=is_cost_kept)):
        gap_s = simulated.gaps.percentile_s(Tier.STANDARD, 0.95)
        assert gap_s is not None
        assert gap_s <= 0.15


def test_a_flood_keeps_most_of_what_it_has_alone() -> None:
    alone = tokens_per_s(of(play(*flood()), "flood"), 10.0, LASTS_S - 5)
    beside = tokens_per_s(of(both(), "flood"), 10.0, LASTS_S - 5)
    # The calm tenant takes an eighth of the time, and short steps a third: more of them is fixed cost.
    assert beside >= 0.5 * alone


def test_pauses_are_bounded_in_number_and_in_time() -> None:
    flooding = of(both(), "flood")
    assert any(each.pauses for each in flooding)
    assert max(each.pauses for each in flooding) <= 4
    assert max(each.paused_ns for each in flooding) / 1e9 <= 30.0
    assert not any(each.pauses for each in of(both(), "calm"))


def test_of_four_tenants_the_two_that_flood_cost_the_others_little() -> None:
    simulated = play(*calm(), *calm("calm-2"), *flood(), *flood("flood-2"))
    alone = whole_p50_s(of(play(*calm()), "calm"))
    for tenant in ("calm", "calm-2"):
        assert not [each for each in of(simulated, tenant) if each.refused is not None]
        assert first_p95_s(of(simulated, tenant)) < 0.5
        assert whole_p50_s(of(simulated, tenant)) < 3 * alone


@pytest.mark.parametrize(
    ("slower", "is_cost_kept"),
    [(1.5, True), (1.5, False), (2.0, True), (2.0, False), (3.0, True), (3.0, False)],
)
def test_however_slow_the_machine_only_those_are_refused_who_flood(slower: float, is_cost_kept: bool) -> None:
    calms = [*calm(), *calm("calm-2")]
    floods = [*flood(), *flood("flood-2")]
    for requests in ([*calm(), *flood()], [*calms, *floods]):
        simulated = play(*requests, is_cost_kept=is_cost_kept, slower=slower)
        assert {each.tenant for each in simulated.requests if each.refused} <= {"flood", "flood-2"}


def test_no_row_of_a_step_is_idle_while_somebody_is_paused() -> None:
    for simulated in (both(), play(*calm(), *calm("calm-2"), *flood(), *flood("flood-2"))):
        engine = simulated.engines[0]
        assert engine.pauses > 20
        assert engine.idle_rows <= 0.01 * engine.rows


def test_a_flood_of_a_better_tier_leaves_worse_ones_their_guarantee() -> None:
    simulated = play(*calm(), *flood(tier=Tier.INTERACTIVE))
    assert not [each for each in of(simulated, "calm") if each.refused is not None]
    assert first_p95_s(of(simulated, "calm")) < 0.5


def test_nobody_is_paused_where_nobody_floods() -> None:
    simulated = play(*calm(), *calm("calm-2"))
    assert simulated.engines[0].pauses == 0


def test_refused_clients_are_told_within_a_factor_of_two_when_they_would_be_let_in() -> None:
    for simulated in (play(*flood()), both()):
        let_in_s = sorted(each.at_s for each in of(simulated, "flood") if each.begun_s is not None)
        ratios = []
        for each in of(simulated, "flood"):
            if each.retry_after_s is None or not 8.0 < each.at_s < LASTS_S - 8:
                continue
            later = bisect_right(let_in_s, each.refused_s)
            if later < len(let_in_s):  # no client is told less than a second
                ratios.append(max(each.retry_after_s, 1.0) / max(let_in_s[later] - each.refused_s, 1.0))
        assert len(ratios) > 20
        assert sum(0.5 <= ratio <= 2.0 for ratio in ratios) >= 0.75 * len(ratios)


@pytest.mark.parametrize("times_capacity", [1.0, 2.0, 5.0])
def test_goodput_is_within_a_tenth_of_one_that_knows_all_lengths(times_capacity: float) -> None:
    trace = arriving(times_capacity * CAPACITY_PER_S, 40.0)
    # Clients allow far more than they get, so that lengths have to be learned.
    trace = replace(trace, requests=tuple(replace(each, max_tokens=1024) for each in trace.requests))
    targets = {tier: replace(each, inter_token_s=0.05) for tier, each in OBJECTIVES.items()}
    goodput = {
        admission: played(trace, replace(SCENARIO, admission=admission, objectives=targets))[1].goodput_per_s
        for admission in (Admission.OBJECTIVES, Admission.ORACLE)
    }
    assert goodput[Admission.OBJECTIVES] >= 0.9 * goodput[Admission.ORACLE]
