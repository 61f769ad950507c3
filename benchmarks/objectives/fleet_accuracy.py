"""`python -m benchmarks.objectives.fleet_accuracy`: what the fleet simulator foretells, beside two servers.

Half of a trace teaches: the engines learn what their steps cost while it is sent, and requests that come
alone tell what a request takes beside them. The other half is then sent at several loads, at random moments,
and held against the forecast for just that. Goodput, the medians of the first token and of the time between
tokens are to be within a tenth of it, their 95th percentiles within 15 %. --real-model has the default model
answer on the processors; without it engines take the time that a cost says, and only what is around them is
tried.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.objectives.arena import (
    COST,
    ENGINE,
    GRACE_S,
    INTER_TOKEN_S,
    Arena,
    around_engine_s,
    arrivals,
    paced,
    sized,
    warm_up,
)
from benchmarks.objectives.arrivals import at_rate, capacity_per_s, in_tiers
from benchmarks.objectives.judging import Objectives, is_good
from benchmarks.objectives.prediction import Engine
from benchmarks.objectives.scenarios import POLICIES
from benchmarks.objectives.serving import Served, Setup, serving
from loadtest.percentiles import percentile
from loadtest.replay.clients import send_from
from loadtest.replay.plan import plan_of
from loadtest.replay.sender import Target
from loadtest.results import RequestResult
from loadtest.traces import Trace, TracedRequest
from python_backend.costs.step_cost import StepCost
from python_backend.wire.tiers import tier_named
from simulator.fleet.cell import PERIOD_S
from simulator.fleet.fleet import FleetPlan, FleetPlayed, play_fleet
from simulator.fleet.state import BIN_FACTOR, FIRST_BIN_S, ReplicaShape
from simulator.planning.proof import lengths_of

GOALS = {
    "good_per_s": 0.1,
    "first_p50_s": 0.1,
    "between_p50_s": 0.1,
    "first_p95_s": 0.15,
    "between_p95_s": 0.15,
}
FIRST, BETWEEN = 0, 1
FORETOLD_S = 3600.0


@dataclass(frozen=True)
class Seen:
    """Of all tiers together."""

    good_per_s: float
    first_p50_s: float
    first_p95_s: float
    between_p50_s: float
    between_p95_s: float


@dataclass(frozen=True)
class Compared:
    load: float
    offered_per_s: float
    measured: Seen
    foretold: Seen
    late_sent_s: float  # by how much the sender itself was behind, at the 95th percentile

    def errors(self) -> dict[str, float]:
        was, said = asdict(self.measured), asdict(self.foretold)
        return {name: abs(said[name] / max(was[name], 1e-9) - 1) for name in GOALS}


def halves(trace: Trace) -> tuple[Trace, Trace]:
    """Every other request: of the same kind, and none of them twice."""
    return replace(trace, requests=trace.requests[::2]), replace(trace, requests=trace.requests[1::2])


def at_random(trace: Trace, per_s: float, seconds: float, seed: int) -> list[TracedRequest]:
    chance = random.Random(seed)
    plan, at_s = [], chance.expovariate(per_s)
    while at_s < seconds:
        plan.append(replace(chance.choice(trace.requests), at_s=at_s))
        at_s += chance.expovariate(per_s)
    return plan


def foretell(
    arena: Arena,
    trace: Trace,
    objectives: Objectives,
    cost: StepCost,
    overhead_s: float,
    per_s: float,
    servers: int,
) -> Seen:
    engine = arena.engine
    plan = FleetPlan(
        ReplicaShape(cost, engine.places, engine.step_tokens, engine.kv_tokens),
        {tier_named(tier): each for tier, each in objectives.items()},
        lengths_of(trace),
        [per_s] * int(FORETOLD_S / PERIOD_S),
        servers,
        routers=1,
        overhead_s=overhead_s,
    )
    played = play_fleet(plan)
    shares = [of_times(played, times, share) for times in (FIRST, BETWEEN) for share in (0.5, 0.95)]
    return Seen(played.share("good") * per_s, *shares)


def of_times(played: FleetPlayed, times: int, share: float) -> float:
    """Of all tiers, between the edges of its bin."""
    sums = np.cumsum(played.times[times].sum(axis=0))
    wanted = share * sums[-1]
    number = int(np.searchsorted(sums, wanted))
    before = float(sums[number - 1]) if number else 0.0
    part = (wanted - before) / max(float(sums[number]) - before, 1e-9)
    return float(FIRST_BIN_S * BIN_FACTOR ** (number - 1 + part))


def seen_in(outcomes: Sequence[RequestResult], objectives: Objectives, window_s: tuple[float, float]) -> Seen:
    begin_s, end_s = window_s
    mine = [each for each in outcomes if begin_s <= each.at_s < end_s]
    firsts = sorted(each.first_token_s for each in mine if each.first_token_s is not None)
    between = sorted(each.between_tokens_s for each in mine if each.between_tokens_s is not None)
    good = sum(is_good(each, objectives) for each in mine) / (end_s - begin_s)
    return Seen(good, *(percentile(each, share) for each in (firsts, between) for share in (0.5, 0.95)))


def learn(served: Served, arena: Arena, taught: Trace, servers: int) -> tuple[StepCost, float, float]:
    """What a step costs, what is around it, and the capacity: by the first half, at a load in the middle."""
    cost, _ = warm_up(served, replace(arena, trace=taught), POLICIES[0])
    sizes = arena.engine.places, arena.engine.kv_tokens
    capacity = servers * capacity_per_s(taught.requests, cost, *sizes)
    target = Target(served.url, served.model, served.keys)
    send_from(target, plan_of(at_rate(taught, 0.6 * capacity, arena.seconds / 2).requests), arena.clients)
    served.wait_until_idle()
    time.sleep(2.0)  # gauges are told every now and then
    cost = served.learned_cost() or cost
    overhead_s = around_engine_s(target, replace(arena, trace=taught), cost)
    return cost, overhead_s, servers * capacity_per_s(taught.requests, cost, *sizes)


def compare_at(
    served: Served, arena: Arena, trace: Trace, known: tuple[StepCost, float], load: float, capacity: float,
    servers: int,
) -> Compared:  # fmt: skip
    objectives = arena.objectives(served.model)
    per_s = load * capacity
    plan = at_random(trace, per_s, arena.seconds, seed=int(100 * load))
    longest_s = arena.seconds + max(arena.first_token_s.values()) + GRACE_S
    target = Target(served.url, served.model, served.keys, gives_up_s=longest_s)
    outcomes = send_from(target, plan_of(plan), arena.clients).results
    served.wait_until_idle()
    window_s = (arena.settle_s, arena.seconds)
    # What chance has sent in the window is known before, as a rate; what became of it is not.
    sent = sum(window_s[0] <= each.at_s < window_s[1] for each in plan) / (window_s[1] - window_s[0])
    return Compared(
        load,
        sent,
        seen_in(outcomes, objectives, window_s),
        foretell(arena, trace, objectives, *known, sent, servers),
        percentile(sorted(each.sent_s for each in outcomes), 0.95),
    )


def arena_for(asked: argparse.Namespace) -> Arena:
    trace = in_tiers(arrivals(asked.trace).clamp(asked.context))
    given = {"seconds": asked.seconds, "settle_s": asked.seconds / 6, "clients": asked.clients}
    if asked.real_model:
        small = Engine(places=8, kv_tokens=8192, step_tokens=256)
        slow = {tier: 4 * each for tier, each in INTER_TOKEN_S.items()}
        return Arena(trace, None, small, sized(small), inter_token_s=slow, **given)
    return Arena(trace, COST, ENGINE, paced(COST, ENGINE), **given)


def show(found: Sequence[Compared], console: Console) -> bool:
    table = Table(
        "load", "offered", *(f"{name}, goal {100 * goal:.0f} %" for name, goal in GOALS.items()), "sent late"
    )
    are_kept = True
    for each in found:
        errors, was, said = each.errors(), asdict(each.measured), asdict(each.foretold)
        cells = []
        for name, goal in GOALS.items():
            is_kept = errors[name] <= goal
            are_kept = are_kept and is_kept
            cells.append(
                f"{was[name]:.3g} / {said[name]:.3g}: {100 * errors[name]:.0f} %{'' if is_kept else ' !'}"
            )
        table.add_row(
            f"{each.load:g}", f"{each.offered_per_s:.2f}/s", *cells, f"{1000 * each.late_sent_s:.0f} ms"
        )
    console.print("measured / foretold: error", table)
    return are_kept


def keep(path: Path, found: Sequence[Compared], cost: StepCost, more: Mapping[str, object]) -> None:
    runs = [{**asdict(each), "errors": each.errors()} for each in found]
    path.write_text(json.dumps({"cost": asdict(cost), **more, "runs": runs}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, help="a file of arrivals; generated if none is given")
    parser.add_argument("--context", type=int, default=2048, help="what is longer is clamped")
    parser.add_argument("--loads", default="0.4,0.65,0.9", help="in capacities of all servers")
    parser.add_argument("--seconds", type=float, default=300.0, help="of each load; half of it teaches")
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--real-model", action="store_true", help="the default model instead of a paced one")
    parser.add_argument("--clients", type=int, default=1, help="processes that send")
    parser.add_argument("--keep", type=Path, help="where to write what was seen, as JSON")
    asked = parser.parse_args()
    console, arena = Console(width=170), arena_for(asked)
    taught, tried = halves(arena.trace)
    setup = Setup(arena.parameters, embeddings=False, triton_servers=asked.servers)
    found: list[Compared] = []
    with serving(setup, arena.trace.tenants) as served:
        served.set_objectives(arena.objectives(served.model))
        cost, overhead_s, capacity = learn(served, arena, taught, asked.servers)
        console.print(f"{cost}, {1000 * overhead_s:.0f} ms around it, {capacity:.2f} requests/s")
        for load in map(float, asked.loads.split(",")):
            known = (cost, overhead_s)
            found.append(compare_at(served, arena, tried, known, load, capacity, asked.servers))
            show(found[-1:], console)
            if asked.keep:
                keep(asked.keep, found, cost, {"overhead_s": overhead_s, "capacity_per_s": capacity})
    sys.exit(not show(found, console))


if __name__ == "__main__":
    main()
