"""Figures are what the requests say, and what is fair is reckoned as it should be."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.wire.tiers import Tier
from router.core.objective import Objective
from simulator.gaps import Gaps
from simulator.report import fair_shares, is_good
from simulator.request import SimulatedRequest
from simulator.scenario import MODEL
from tests.simulator.traffic import CAPACITY_PER_S, arriving, played


def answered(first_s: float, ended_s: float, tokens: int) -> SimulatedRequest:
    request = SimulatedRequest(0, 10.0, "a", Tier.STANDARD, 5, tokens, tokens)
    request.first_token_s, request.ended_s = 10.0 + first_s, 10.0 + ended_s
    return request


@pytest.mark.parametrize(
    ("request_", "good"),
    [
        (answered(0.9, 2.0, 12), True),
        (answered(1.1, 2.0, 12), False),
        (answered(0.9, 2.1, 12), False),
        (answered(0.9, 0.9, 1), True),
        (SimulatedRequest(0, 0.0, "a", Tier.STANDARD, 5, 5, 5), False),
    ],
    ids=["in time", "first token late", "tokens slow", "one token", "never answered"],
)
def test_an_answer_is_good_when_whole_and_in_time(request_: SimulatedRequest, good: bool) -> None:
    objective = Objective(MODEL, Tier.STANDARD, first_token_s=1.0, inter_token_s=0.101)
    assert is_good(request_, objective) is good


def test_without_an_objective_a_request_has_the_patience_of_its_tier() -> None:
    assert is_good(answered(59.0, 500.0, 12), Objective(MODEL, Tier.STANDARD))
    assert not is_good(answered(61.0, 62.0, 12), Objective(MODEL, Tier.STANDARD))


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0.0, 100.0), min_size=1),
    st.floats(0.0, 300.0),
    st.floats(0.5, 4.0),
)
def test_fair_shares_spend_the_total_and_give_no_tenant_more_than_it_asked_for(
    asked: dict[str, float], total: float, weight: float
) -> None:
    weights = {"a": weight}
    shares = fair_shares(asked, total, weights)
    assert sum(shares.values()) == pytest.approx(min(total, sum(asked.values())), abs=1e-6)
    assert all(shares[name] <= asked[name] + 1e-9 for name in asked)
    short = {
        name: shares[name] / weights.get(name, 1.0) for name in asked if shares[name] < asked[name] - 1e-6
    }
    if short:
        level = min(short.values())
        assert all(shares[name] / weights.get(name, 1.0) <= level + 1e-6 for name in asked)


def test_percentiles_of_gaps_are_those_of_the_gaps_within_two_percent() -> None:
    gaps = Gaps()
    for number in range(1, 1001):
        gaps.add(Tier.BATCH, number / 1000, 3)
    assert gaps.percentile_s(Tier.BATCH, 0.5) == pytest.approx(0.5, rel=0.02)
    assert gaps.percentile_s(Tier.BATCH, 0.95) == pytest.approx(0.95, rel=0.02)
    assert gaps.percentile_s(Tier.STANDARD, 0.5) is None


def test_the_reported_metrics_add_up() -> None:
    trace = arriving(1.5 * CAPACITY_PER_S, 40.0)
    simulated, figures = played(trace)
    assert figures.offered == len(trace.requests) == sum(tier.offered for tier in figures.tiers)
    assert figures.good == sum(tier.good for tier in figures.tiers)
    assert figures.refused == sum(tier.refused for tier in figures.tiers)
    assert figures.offered == sum(tenant.offered for tenant in figures.tenants)
    assert sum(tier.work_share for tier in figures.tiers) == pytest.approx(1.0)
    assert figures.goodput_per_s == pytest.approx(figures.good / trace.duration_s)
    assert 0.9 < figures.busy_share <= 1.0
    assert 30 < figures.mean_batch <= 64
    assert simulated.moments[5].running > 0
