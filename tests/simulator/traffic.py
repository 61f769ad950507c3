"""Traffic for the simulations: published traces where they are at hand, else generated ones like them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

from loadtest.traces import (
    ARENA,
    CODE,
    Shape,
    Trace,
    TracedRequest,
    read_trace,
    synthetic_trace,
    tiers_by_chance,
)
from python_backend.costs.step_cost import StepCost
from python_backend.wire.tiers import Tier
from router.core.objective import Objective
from simulator.engine import EngineShape
from simulator.report import Figures, figures_of
from simulator.scenario import MODEL, Scenario
from simulator.simulation import Simulated, simulate

TRACES = Path(__file__).parents[3] / "shared" / "traces"
# Made up, and about right for a small GPU: 64 of the arena's answers at once are some 7.7 a second.
SHAPE = EngineShape(StepCost(12.0, 0.12, 0.25), slots=64, step_tokens=512, kv_tokens=40_960)
CAPACITY_PER_S = 7.7
OBJECTIVES = {
    Tier.INTERACTIVE: Objective(MODEL, Tier.INTERACTIVE, first_token_s=1.0),
    Tier.STANDARD: Objective(MODEL, Tier.STANDARD, first_token_s=3.0),
    Tier.BATCH: Objective(MODEL, Tier.BATCH, first_token_s=30.0),
}
SCENARIO = Scenario(SHAPE, objectives=OBJECTIVES)
EVENLY = {tier.label: 1.0 for tier in Tier}


@cache
def arena() -> Trace:
    return _published("vtc_chatbot_arena_trace.csv", ARENA)


@cache
def code() -> Trace:
    return _published("AzureLLMInferenceTrace_code.csv", CODE)


def _published(name: str, shape: Shape) -> Trace:
    path = TRACES / name
    return read_trace(path) if path.is_file() else synthetic_trace(1, 600.0, shape)


def arriving(
    per_s: float, duration_s: float, tiers: dict[str, float] | None = None, trace: Trace | None = None
) -> Trace:
    trace = trace or arena()
    rate = len(trace.requests) / trace.duration_s
    return trace.faster(per_s / rate).lasting(duration_s).with_tiers(tiers_by_chance(tiers or EVENLY))


def flood(tenant: str, per_s: float, duration_s: float, tier: Tier) -> Iterator[TracedRequest]:
    """One tenant with requests like those of all others, and far too many."""
    chance = random.Random(5)
    at_s = chance.expovariate(per_s)
    while at_s <= duration_s:
        yield replace(chance.choice(arena().requests), at_s=at_s, tenant=tenant, tier=tier.label)
        at_s += chance.expovariate(per_s)


def played(trace: Trace, scenario: Scenario = SCENARIO) -> tuple[Simulated, Figures]:
    simulated = simulate(trace, scenario)
    return simulated, figures_of(simulated, scenario)
