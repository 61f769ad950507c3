"""Places that better tiers take, beside whom the engine preempts and how the detailed simulator has it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadtest.percentiles import percentile
from loadtest.traces import Trace, TracedRequest
from python_backend.costs.step_cost import StepCost
from python_backend.engine.scheduling.batch import Batch
from python_backend.wire.tiers import Tier
from router.core.objective import Objective
from simulator.engine import EngineShape
from simulator.fleet.cell import CellPlan, _Play, compiled_shape
from simulator.fleet.ends import push_end
from simulator.fleet.fleet import FleetPlan, play_fleet
from simulator.fleet.giving_way import NOBODY, victim_for
from simulator.fleet.state import Array, ReplicaShape, new_cell, sample
from simulator.request import SimulatedRequest
from simulator.scenario import Scenario
from simulator.simulation import simulate
from tests.tiers import examples

COST = StepCost(20.0, 3.0, 6.0)
SHAPE = ReplicaShape(COST, 8, 256, 8192, depth=1)
OBJECTIVES = {
    tier: Objective("m", tier, first_s, 0.4) for tier, first_s in zip(Tier, (1.0, 3.0, 30.0), strict=True)
}
_few = settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def asked_for(per_s: float, seconds: float) -> Array:
    dice = np.random.default_rng(1)
    count = int(per_s * seconds)
    prompts = np.clip(dice.lognormal(2.7, 1.0, count), 1, 256).astype(int)
    outputs = np.clip(dice.lognormal(3.8, 0.8, count), 2, 250).astype(int)
    at_s = np.cumsum(dice.exponential(1 / per_s, count))
    asked = sample(prompts, outputs, dice.integers(0, 3, count), dice.integers(0, 9, count), at_s)
    asked["home"] = dice.integers(0, 2, count)
    return asked


@_few
@given(st.lists(st.sampled_from(Tier), min_size=1, max_size=12), st.integers(1, 12), st.sampled_from(Tier))
def test_a_better_tier_takes_the_place_that_the_engine_would_give_it(
    running: list[Tier], limit: int, taker: Tier
) -> None:
    members: Batch[SimulatedRequest] = Batch(16)
    lengths = sample(np.array([1]), np.array([1]), np.array([0]), np.array([0]))
    cell = new_cell(
        compiled_shape(CellPlan(SHAPE, OBJECTIVES, lengths, [1.0], 1, 1, 0)), lengths, 1, 1, 1, 1, 0
    )
    replica, places = cell.engines.replicas[0], cell.engines.slots[0]
    for number, tier in enumerate(running):
        request = SimulatedRequest(number, float(number), f"t{number}", tier, 5, 9, 9)
        members.put(request)
        members.enter(request)
        places[number].tier, places[number].at_s = tier, float(number)
        push_end(cell.engines, 0, 20 - number % 7, number)
        replica.decoding += 1
    members.limit = min(limit, len(running))
    wanted = members.victim_for(SimulatedRequest(99, 99.0, "new", taker, 5, 9, 9), ())
    found = victim_for(cell.engines, 0, int(taker), members.limit, 0)
    if wanted is None or wanted.tier <= taker:  # of these somebody is paused at most
        assert found == NOBODY
    else:
        assert int(places[found].heap_slot) == wanted.number


def test_books_are_right_where_tiers_preempt_and_each_request_ends_once() -> None:
    asked = asked_for(2.8, 60.0)
    play = _Play(CellPlan(SHAPE, OBJECTIVES, asked, [2.8] * 30, 2, 2, seed=1, routers=1, is_traced=True))
    played = play.run()
    rows = play._cell.engines.replicas
    assert (play._cell.engines.slots["done"] > 0).any(), "somebody was preempted"
    for name in ("taken", "heap", "decoding", "behind", "kv", "lacking"):
        assert (rows[name] == 0).all()
    assert int(played.times[0].sum()) + int(played.periods["refused"].sum()) == len(asked)


def test_near_its_capacity_better_tiers_fare_as_in_the_detailed_simulator() -> None:
    per_s = 2.4
    asked = asked_for(per_s, 900.0)
    requests = tuple(
        TracedRequest(float(at_s), int(prompt), int(output), str(tenant), Tier(tier).label)
        for prompt, output, tier, tenant, _, at_s in asked
    )
    homes = [int(each) for each in asked["home"]]
    engine = EngineShape(COST, 8, 256, 8192, depth=1)
    scenario = Scenario(engine, 2, objectives=OBJECTIVES, overhead_s=0.01, homes=homes)
    simulated = simulate(Trace("t", requests), scenario)
    plan = FleetPlan(SHAPE, OBJECTIVES, asked, [per_s] * 200, 2, routers=1, overhead_s=0.01, is_traced=True)
    played = play_fleet(plan)
    assert sum(each.preemptions for each in simulated.engines) > 50
    for tier in (Tier.INTERACTIVE, Tier.STANDARD):
        firsts = [
            each.first_token_s - each.at_s
            for each in simulated.requests
            if each.tier is tier and each.first_token_s is not None
        ]
        for share in (0.5, 0.95):
            found = played.percentile(0, tier, share)
            assert found == pytest.approx(percentile(sorted(firsts), share), rel=0.1)
