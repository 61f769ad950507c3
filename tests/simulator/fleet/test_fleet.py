"""The fleet simulator beside what it stands for: the engine's limits, the router's choice, the other one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadtest.traces import Shape, Trace, TracedRequest, synthetic_trace
from python_backend.costs.step_cost import StepCost
from python_backend.engine.scheduling.budget import StepLimits, step_limits
from python_backend.engine.scheduling.pace import Pace, StepLoad
from python_backend.sharing.places import Places
from python_backend.wire.tiers import Tier
from router.control.scaling.replicas import ScalingSettings
from router.core.objective import Objective
from router.routing.replica_choice import LEAST_TOKENS, answer_tokens, choose, most_tokens
from simulator.engine import EngineShape
from simulator.fleet.cell import CellPlan, CellPlayed, _Play, compiled_shape, play_cell
from simulator.fleet.choice import chosen_replica, least_loaded, left_of
from simulator.fleet.failures import Failure, Kind
from simulator.fleet.fleet import FleetPlan, play_fleet, zone_rates
from simulator.fleet.light import batch_beside_light
from simulator.fleet.plan import limits
from simulator.fleet.play import advance
from simulator.fleet.releases import Release
from simulator.fleet.scalers import Wanted
from simulator.fleet.state import BIN_FACTOR, FIRST_BIN_S, Array, ReplicaShape, new_cell, sample
from simulator.fleet.steps import steps_told
from simulator.planning import proof
from simulator.planning.profiles import Profile
from simulator.planning.search import find
from simulator.planning.wish import Traffic, Wish
from simulator.report import figures_of
from simulator.scenario import Scenario
from simulator.simulation import simulate
from simulator.slowness import AS_USUAL, Slowness
from simulator.uneven_cost import UnevenStepCost
from tests.tiers import examples

COST = StepCost(12.0, 0.12, 0.25, 0.05)
SHAPE = ReplicaShape(COST, 32, 512, 60_000)
UNEVEN = UnevenStepCost(20.0, 5.0, 8.0, 0.0, (28.0, 41.0, 52.0, 45.0, 56.0, 70.0, 76.0, 74.0))
OBJECTIVES = {
    Tier.INTERACTIVE: Objective("m", Tier.INTERACTIVE, 1.0, 0.08),
    Tier.STANDARD: Objective("m", Tier.STANDARD, 3.0),
}
_few = settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def lengths(count: int = 200, seed: int = 1) -> Array:
    dice = np.random.default_rng(seed)
    prompts = np.clip(dice.lognormal(4.0, 0.8, count), 4, 800).astype(int)
    outputs = np.clip(dice.lognormal(3.7, 0.6, count), 2, 200).astype(int)
    return sample(prompts, outputs, dice.integers(0, 2, count), dice.integers(0, 5, count))


def traced(asked: Array) -> Trace:
    requests = [
        TracedRequest(float(at_s), int(prompt), int(output), str(tenant), Tier(tier).label)
        for prompt, output, tier, tenant, _, at_s in asked
    ]
    return Trace("t", tuple(requests))


def cell(rates: list[float], replicas: int = 2, **others: object) -> CellPlan:
    plan = CellPlan(SHAPE, OBJECTIVES, lengths(), rates, replicas, replicas, seed=3)
    return replace(plan, **others)  # type: ignore[arg-type]


@_few
@given(
    st.floats(0.1, 50), st.floats(1e-4, 1), st.floats(1e-4, 1), st.floats(0, 1),
    st.floats(1, 500), st.integers(0, 200), st.integers(0, 100_000),
)  # fmt: skip
def test_compiled_limits_are_those_of_the_engine(
    base: float, prefill: float, decode: float, kv: float, target_ms: float, running: int, cached: int
) -> None:
    cost = StepCost(base, prefill, decode, kv)
    shape = compiled_shape(replace(cell([1.0]), shape=replace(SHAPE, cost=cost, slots=256, step_tokens=2048)))
    expected = step_limits(StepLimits(256, 2048), cost, target_ms, running, cached)
    batch, tokens = limits(shape, target_ms / 1000, running, cached)
    assert abs(batch - expected.max_batch_size) <= 1
    assert abs(tokens - expected.max_step_tokens) <= 1


@_few
@given(
    st.lists(st.tuples(st.sampled_from(Tier), st.integers(0, 4)), max_size=32),
    st.floats(0.1, 50), st.floats(0.01, 5), st.floats(0, 20), st.integers(1, 400),
)  # fmt: skip
def test_as_many_run_beside_a_light_tenant_as_in_the_engine(
    running: list[tuple[Tier, int]], base: float, decode: float, kv: float, cached: int
) -> None:
    cost, count = StepCost(base, 0.1, decode, kv), len(running)
    plan = replace(cell([1.0], 1), shape=replace(SHAPE, cost=cost))
    made = new_cell(compiled_shape(plan), plan.lengths, 1, 1, 1, 1, 0)
    places, replica, slots = Places(), made.engines.replicas[0], made.engines.slots[0]
    for place, (tier, tenant) in enumerate(running):
        places.take((tier, str(tenant)))
        slots[place].tier, slots[place].tenant, slots[place].heap_slot = tier, tenant, place
    replica.heap = replica.decoding = replica.taken = count
    replica.kv = count * cached
    lightest = places.lightest()
    light = 0 if lightest is None else places.held(lightest)
    load = StepLoad(count, count * cached, 1e9, light, places.tenants)
    wanted = Pace(StepLimits(SHAPE.slots, SHAPE.step_tokens), True).limits(cost, load, 0.0)
    found = batch_beside_light(made.engines, compiled_shape(plan), 0, 0.0)
    # Where that many do not run, how many may is not asked.
    assert min(found, count) == pytest.approx(min(wanted.batch, count), abs=1)


@dataclass
class Candidate:
    name: str
    outstanding_tokens: int
    begun: int


@_few
@given(st.lists(st.integers(0, 9000), min_size=1, max_size=8), st.integers(1, 4000))
def test_an_opening_belongs_to_any_replica_that_the_router_would_still_prefer(
    loads: list[int], prompt: int
) -> None:
    plan = cell([1.0], len(loads))
    shape = compiled_shape(plan)
    made = new_cell(shape, plan.lengths, len(loads), len(loads), 2, 1, 0)
    made.engines.views["left"][0] = loads
    found = {chosen_replica(made, 0, prompt, home) for home in range(len(loads))}
    assert found == {row for row, tokens in enumerate(loads) if tokens <= most_tokens(min(loads), prompt)}


@_few
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3)), min_size=1, max_size=8))
def test_the_compiled_choice_of_a_replica_is_the_routers(loads: list[tuple[int, int]]) -> None:
    plan = cell([1.0], len(loads))
    shape = compiled_shape(plan)
    made = new_cell(shape, plan.lengths, len(loads), len(loads), 2, 1, 0)
    made.engines.views["left"][0] = [tokens for tokens, _ in loads]
    made.engines.replicas["begun"] = [begun for _, begun in loads]
    chosen = choose([Candidate(f"r{at}", *each) for at, each in enumerate(loads)], None)
    assert chosen is not None
    assert least_loaded(made, 0) == int(chosen.name[1:])


def test_what_is_left_on_a_replica_falls_as_answers_grow_as_the_router_counts_it() -> None:
    play = _Play(cell([20.0, 20.0, 0.0, 0.0], 2, routers=1))
    seen = 0
    for period in range(4):
        for number in range(1, 11):
            now_s = 5.0 * period + 0.5 * number
            advance(play._cell, play._shape, now_s, 20.0 if period < 2 else 0.0, period)
            for row in (0, 1):
                wanted = outstanding_tokens(play, row, now_s)
                assert left_of(play._cell.engines, 0, row, now_s) == pytest.approx(
                    sum(wanted), abs=16 * len(wanted)
                )
                seen += len(wanted)
    assert seen > 100
    assert (play._cell.engines.views["left"] == 0.0).all()


def outstanding_tokens(play: _Play, row: int, now_s: float) -> list[int]:
    """Of each request there, by the router's rule."""
    engines = play._cell.engines
    places, replica, told = engines.slots[row], engines.replicas[row], steps_told(engines, row, now_s)
    behind = [places[places[at].behind] for at in range(replica.behind + replica.arrived)]
    found = [int(each.prompt) + answer_tokens(each.output, each.output) for each in behind]
    for at in range(replica.heap):
        left, output = int(places[at].heap_step - told), int(places[places[at].heap_slot].output)
        found.append(max(answer_tokens(output, output) - (output - left), LEAST_TOKENS))
    return found


@pytest.mark.parametrize("per_s", [6.0, 14.0])
def test_it_agrees_with_the_detailed_simulator(per_s: float) -> None:
    drawn, dice = lengths(), np.random.default_rng(5)
    at_s = np.cumsum(dice.exponential(1 / per_s, int(40 * per_s)))
    asked = drawn[dice.integers(0, len(drawn), len(at_s))]
    asked["at_s"] = at_s
    trace = traced(asked)
    scenario = Scenario(EngineShape(COST, 32, 512, 60_000), replicas=2, objectives=OBJECTIVES)
    detailed = figures_of(simulate(trace, scenario), scenario)
    played = play_fleet(FleetPlan(SHAPE, OBJECTIVES, drawn, [per_s] * 8 + [0.0] * 3, 2, routers=1, seed=2))
    assert played.share("good") == pytest.approx(detailed.good / detailed.offered, abs=0.08)
    for tier in OBJECTIVES:
        seen = detailed.tier(tier)
        assert played.percentile(0, tier, 0.5) == pytest.approx(seen.first_token_p50_s, rel=0.25)
        assert played.percentile(1, tier, 0.5) == pytest.approx(seen.inter_token_p50_s, rel=0.15)


@pytest.mark.parametrize(
    ("cost", "slowness"),
    [
        (StepCost(20.0, 5.0, 8.0), AS_USUAL),
        (UNEVEN, AS_USUAL),
        (UNEVEN, Slowness((0.5, 2.0) * 25, every_s=5.0, from_s=-3.0)),
    ],
)
def test_on_two_slow_replicas_requests_wait_as_in_the_detailed_simulator(
    cost: StepCost, slowness: Slowness
) -> None:
    count, dice = 400, np.random.default_rng(3)
    prompts = np.clip(dice.lognormal(2.9, 1.0, count), 2, 500).astype(int)
    outputs = np.clip(dice.lognormal(3.5, 0.8, count), 2, 200).astype(int)
    asked = sample(prompts, outputs, np.full(count, 1), dice.integers(0, 5, count), np.arange(count) / 1.6)
    asked["home"] = dice.integers(0, 2, count)
    homes = [int(each) for each in asked["home"]]
    objectives = {Tier.STANDARD: Objective("m", Tier.STANDARD, 10.0, 0.32)}
    engine = EngineShape(cost, 8, 256, 8192, depth=1, slowness=slowness)
    scenario = Scenario(engine, 2, objectives=objectives, overhead_s=0.0, homes=homes)
    detailed = simulate(traced(asked), scenario).requests
    firsts = [each.first_token_s - each.at_s for each in detailed if each.first_token_s is not None]
    plan = FleetPlan(
        ReplicaShape(cost, 8, 256, 8192, depth=1, slowness=slowness),
        objectives,
        asked,
        [1.6] * 60,
        2,
        routers=1,
        overhead_s=0.0,
        is_traced=True,
    )
    played = play_fleet(plan)
    assert len(firsts) == count
    for share in (0.5, 0.9):
        found = played.percentile(0, Tier.STANDARD, share)
        assert found == pytest.approx(np.percentile(firsts, 100 * share), rel=0.1)


@pytest.mark.parametrize(("seed", "even_context"), [(2, None), (3, None), (3, 13_312)])
def test_late_first_tokens_are_those_of_the_detailed_simulator_where_cache_is_short(
    seed: int, even_context: int | None
) -> None:
    per_s, count, dice = 11.0, 1320, np.random.default_rng(seed)
    prompts = np.clip(dice.lognormal(6.6, 1.0, count), 8, 4000).astype(int)
    outputs = np.clip(dice.lognormal(4.9, 0.7, count), 2, 500).astype(int)
    tiers, tenants = dice.choice(3, count, p=(0.6, 0.3, 0.1)), dice.integers(0, 5, count)
    at_s = np.cumsum(dice.exponential(1 / per_s, count))
    asked = sample(prompts, outputs, tiers, tenants, at_s)
    trace = traced(asked)
    cost, objectives = (
        StepCost(4.3, 0.022, 0.0, 0.07),
        {tier: Objective("m", tier, 1.0, 0.04) for tier in Tier},
    )
    engine = EngineShape(cost, 48, 2048, 28_000, 64, even_context=even_context)
    scenario = Scenario(engine, objectives=objectives)
    detailed = simulate(trace, scenario).requests
    firsts = [each.first_token_s - each.at_s for each in detailed if each.first_token_s is not None]
    shape = ReplicaShape(cost, 48, 2048, 28_000, even_context=even_context)
    played = play_fleet(FleetPlan(shape, objectives, asked, [per_s] * 28, 1, routers=1, is_traced=True))
    assert played.share("refused") == pytest.approx(1 - len(firsts) / count, abs=0.04)
    sums = np.cumsum(played.times[0].sum(axis=0))
    late_s = FIRST_BIN_S * BIN_FACTOR ** (np.searchsorted(sums, 0.95 * sums[-1]) - 0.5)
    assert late_s == pytest.approx(np.percentile(firsts, 95), rel=0.25)


def test_requests_of_a_trace_come_when_they_came_and_figures_begin_when_they_are_to() -> None:
    drawn = lengths(40)
    drawn["at_s"] = 0.25 + 0.5 * np.arange(40)
    plan = FleetPlan(SHAPE, OBJECTIVES, drawn, [2.0] * 8, 2, is_traced=True, counted_from_s=10.0)
    played = play_fleet(plan)
    assert played.periods["offered"].sum(axis=1).tolist() == [0, 0, 10, 10, 0, 0, 0, 0]
    assert played.times[0].sum() + played.periods["refused"].sum() == 20
    other = play_fleet(replace(plan, seed=5))
    assert (other.periods["offered"] == played.periods["offered"]).all()
    with pytest.raises(ValueError, match="one cell"):
        play_fleet(replace(plan, zones=2))


def test_the_same_seed_plays_the_same() -> None:
    first, second = (play_cell(cell([8.0, 8.0])) for _ in range(2))
    assert (first.periods == second.periods).all()
    assert (first.times == second.times).all()
    assert (play_cell(cell([8.0, 8.0], seed=4)).times != first.times).any()


def check(play: _Play) -> None:
    engines = play._cell.engines
    rows = engines.replicas
    assert (rows["taken"] == rows["heap"] + rows["behind"] + rows["arrived"]).all()
    assert (rows["heap"] == rows["decoding"]).all()
    assert (engines.views["slots"].sum(axis=0) == rows["taken"]).all()
    assert (rows["kv"] >= 0).all()
    assert (rows["lacking"] >= 0).all()


@pytest.mark.parametrize("kind", [Kind.REPLICA, Kind.HOST, Kind.ROUTER, Kind.REDIS])
def test_books_are_right_after_a_loss_and_nobody_is_forgotten(kind: Kind) -> None:
    plan = cell([10.0, 10.0, 0.0, 0.0, 0.0], 4, hosts=2, failures=(Failure(kind, 7.0, 2.0),), start_s=1.0)
    play = _Play(plan)
    played: CellPlayed = play.run()
    check(play)
    counted = played.periods
    ended = int(played.times[0].sum())
    assert int(counted["offered"].sum()) == ended + int(counted["refused"].sum())
    assert played.open[-1] == 4


def test_a_lost_zone_leaves_its_requests_to_the_others() -> None:
    rates = zone_rates(3, (Failure(Kind.ZONE, 50.0, 50.0, zone=1),), [30.0] * 40, start_s=20.0)
    assert rates[:, 0] == pytest.approx([10, 10, 10])
    assert rates[1, 15:20] == pytest.approx([0] * 5)
    assert rates[0, 15] == pytest.approx(15)
    assert rates[:, -1] == pytest.approx([10, 10, 10])
    assert rates.sum() > 30.0 * 40  # those that failed come again


def test_wanted_replicas_serve_after_their_start() -> None:
    scaler = Wanted(ScalingSettings(start_s=10.0))
    plan = cell([12.0] * 6, 1, most=6, start_s=10.0, scaler=scaler, unit=0.3)
    played = play_cell(plan)
    assert played.open[0] == 1
    assert played.open[-1] > 1
    assert played.replicas[-1] >= played.open[-1]


def test_a_release_begins_every_replica_anew_and_loses_nobody() -> None:
    play = _Play(cell([6.0] * 16 + [0.0] * 4, 4, release=Release(5.0, at_once=2), start_s=10.0))
    played = play.run()
    check(play)
    assert min(played.open) == 2
    assert played.open[-1] == 4
    assert 25.0 <= played.released_s <= 80.0  # two rounds of a drain and a start
    counted = played.periods
    assert int(counted["offered"].sum()) == int(played.times[0].sum()) + int(counted["refused"].sum())


def test_autoscaling_leaves_alone_what_a_release_has() -> None:
    scaler = Wanted(ScalingSettings(start_s=10.0))
    plan = cell([6.0] * 40, 2, most=4, start_s=10.0, scaler=scaler, unit=0.3, release=Release(5.0))
    assert play_cell(plan).released_s < 200.0


def test_a_plan_says_how_long_a_release_at_the_peak_takes_and_what_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proof, "_RELEASE_S", 400.0)
    profile = Profile("x1", "m", "bf16", 1, 12.0, 0.12, 0.25, 0.05, 60_000, 1.0, 32, 512, 0.05, "measured")
    trace = synthetic_trace(0, 60.0, Shape(output_median_tokens=30.0, longest_tokens=200))
    wish = Wish("m", Traffic(trace, 4.0), {Tier.STANDARD: OBJECTIVES[Tier.STANDARD]}, {"x1": 1.0})
    kept, took_s = proof.prove_release(find(wish, [profile]))
    assert 3 * 61.0 <= took_s < 340.0  # three replicas of three zones, each with its cold start
    assert kept > 0.95


def test_first_tokens_have_no_objective_between_tokens_where_none_was_given() -> None:
    assert compiled_shape(cell([1.0])).inter_token_s[Tier.STANDARD] == inf
