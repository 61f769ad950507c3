"""Plans are at the rate that was asked for, and the capacity is that of a full batch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.objectives.arrivals import (
    at_rate,
    burst,
    capacity_per_s,
    flood,
    in_tiers,
    usual_batch,
    write_trace,
)
from loadtest.traces import TracedRequest, read_trace, synthetic_trace
from python_backend.costs.step_cost import StepCost
from python_backend.wire.tiers import Tier


def test_a_plan_has_the_requested_rate_and_length() -> None:
    plan = at_rate(synthetic_trace(1, 100.0), 30.0, 40.0)
    assert len(plan.requests) == 1200
    assert 38 < plan.requests[-1].at_s <= 40
    assert [each.at_s for each in plan.requests] == sorted(each.at_s for each in plan.requests)


def test_a_plan_has_the_mixture_of_the_whole_trace_at_any_rate() -> None:
    trace = in_tiers(synthetic_trace(1, 400.0))
    usual = Counter(each.tier for each in trace.requests)
    for per_s in (4.0, 20.0, 90.0):
        plan = at_rate(trace, per_s, 40.0).requests
        seen = Counter(each.tier for each in plan)
        for tier, count in usual.items():
            assert seen[tier] / len(plan) == pytest.approx(count / len(trace.requests), abs=0.1)


def test_each_tenant_keeps_to_one_tier_and_each_tier_has_some() -> None:
    trace = in_tiers(synthetic_trace(1, 200.0))
    tiers = {(each.tenant, each.tier) for each in trace.requests}
    assert len(tiers) == len(trace.tenants)
    counts = Counter(each.tier for each in trace.requests)
    assert set(counts) == {tier.label for tier in Tier}
    assert min(counts.values()) > len(trace.requests) / 10


def test_a_flood_and_a_burst_are_added_to_the_plan() -> None:
    trace = in_tiers(synthetic_trace(1, 50.0))
    loud = flood(trace, "loud", Tier.STANDARD, 40.0, 20.0)
    assert len(loud) == pytest.approx(800, rel=0.15)
    assert {(each.tenant, each.tier) for each in loud} == {("loud", "standard")}
    assert all(5 <= each.at_s < 6 for each in burst(trace, 5.0, 60))


def test_capacity_is_the_rate_of_full_batches() -> None:
    requests = [TracedRequest(0.0, 100, 200)]
    cost = StepCost(10.0, 0.1, 0.5)
    # 16 at once: 18 ms a step, of which a request has a sixteenth, 200 times, and 10 ms for its prompt.
    assert capacity_per_s(requests, cost, 16, 100_000) == pytest.approx(1000 / (200 * 18 / 16 + 10))
    assert usual_batch(requests, 16, 1000) == pytest.approx(3)


def test_the_simulator_reads_the_trace_that_was_sent(tmp_path: Path) -> None:
    plan = at_rate(in_tiers(synthetic_trace(1, 30.0)), 5.0, 10.0).requests
    read = read_trace(write_trace(plan, tmp_path / "plan.csv")).requests
    assert [(each.tenant, each.tier, each.prompt_tokens, each.output_tokens) for each in read] == [
        (each.tenant, each.tier, each.prompt_tokens, each.output_tokens) for each in plan
    ]
