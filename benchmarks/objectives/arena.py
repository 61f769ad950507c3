"""A trace of many tenants against the real stack: goodput under objectives, first come, and a cap.

Requests are sent when the trace says, at multiples of what the engine can do. Without --trace one is
generated; with --real-model the default model answers: `python -m benchmarks.objectives.arena --help`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.objectives.arena_goals import Kept
from benchmarks.objectives.arena_report import draw, keep, read, show
from benchmarks.objectives.arrivals import at_rate, capacity_per_s, in_tiers, usual_batch, work_ms
from benchmarks.objectives.judging import Objectives, judge, recovery_s
from benchmarks.objectives.prediction import Engine, compare, foretell
from benchmarks.objectives.scenarios import (
    BURST_AT_S,
    FLOODER,
    POLICIES,
    Policy,
    Run,
    noisy_tenant,
    overload,
    retry_storm,
    sudden_burst,
)
from benchmarks.objectives.serving import Served, Setup, serving
from benchmarks.plots import Plots
from loadtest.percentiles import percentile
from loadtest.replay.clients import send_from
from loadtest.replay.plan import plan_of
from loadtest.replay.sender import Target
from loadtest.traces import Trace, TracedRequest, read_trace, synthetic_trace
from python_backend.costs.step_cost import StepCost, StepShape
from python_backend.wire.tiers import Tier
from router.core.objective import Objective

COST = StepCost(12.0, 0.12, 0.25, 0.05)
ENGINE = Engine(places=64, kv_tokens=40_960, step_tokens=512)
FIRST_TOKEN_S = {Tier.INTERACTIVE: 1.0, Tier.STANDARD: 3.0, Tier.BATCH: 30.0}
INTER_TOKEN_S = {Tier.INTERACTIVE: 0.06, Tier.STANDARD: 0.1, Tier.BATCH: 0.2}
# After the last arrival and the longest objective: whoever waits still longer leaves, and nothing is lost.
GRACE_S = 5.0
WARM_UP_S = 6.0


@dataclass(frozen=True)
class Arena:
    """What is served and asked; `cost` is None where the engine has to learn it first."""

    trace: Trace
    cost: StepCost | None
    engine: Engine
    parameters: dict[str, str]
    seconds: float = 60.0
    settle_s: float = 15.0
    clients: int = 1
    model: str | None = None
    data_dir: Path | None = None
    first_token_s: dict[Tier, float] = field(default_factory=lambda: dict(FIRST_TOKEN_S))
    inter_token_s: dict[Tier, float] = field(default_factory=lambda: dict(INTER_TOKEN_S))

    def objectives(self, model: str) -> Objectives:
        return objectives_of(model, self.first_token_s, self.inter_token_s)

    def setup(self, policy: Policy) -> Setup:
        return Setup(self.parameters, self.model, self.data_dir, policy.settings, embeddings=False)


@dataclass(frozen=True)
class Wish:
    """Which runs, under which policies."""

    policies: Sequence[Policy]
    factors: Sequence[float]
    noisy: bool = False
    burst: bool = False
    retry_storm: bool = False

    def runs(self, arena: Arena, capacity: float) -> Iterator[Run]:
        given = arena.trace, capacity
        yield from overload(*given, self.factors, arena.seconds)
        if self.retry_storm:
            yield from retry_storm(*given, max(self.factors), arena.seconds)
        if self.noisy:
            yield from noisy_tenant(*given, arena.seconds)
        if self.burst:
            yield from sudden_burst(*given, arena.seconds)


def objectives_of(
    model: str, first_token_s: Mapping[Tier, float], inter_token_s: Mapping[Tier, float]
) -> dict[str, Objective]:
    return {tier.label: Objective(model, tier, first_token_s[tier], inter_token_s[tier]) for tier in Tier}


def paced(cost: StepCost, engine: Engine) -> dict[str, str]:
    """An engine whose steps take the time that `cost` says."""
    numbers = cost.base_ms, cost.prefill_token_ms, cost.decode_sequence_ms, cost.kv_kilotoken_ms
    return {
        "inflight_runtime": "paced",
        "inflight_paced_cost": ",".join(f"{each:g}" for each in numbers),
        **sized(engine),
    }


def sized(engine: Engine) -> dict[str, str]:
    return {
        "inflight_max_batch_size": str(engine.places),
        "max_tokens_in_paged_kv_cache": str(engine.kv_tokens),
        "inflight_max_step_tokens": str(engine.step_tokens),
    }


def measure(
    arena: Arena, wishes: Sequence[Wish], console: Console, keep_at: Path | None = None
) -> list[Kept]:
    """Every policy on a stack of its own; what was seen is kept after each, lest a limit of time loses it."""
    kept: list[Kept] = []
    capacity = None
    for wish, policy in [(each, policy) for each in wishes for policy in each.policies]:
        with serving(arena.setup(policy), [*arena.trace.tenants, FLOODER]) as served:
            objectives = arena.objectives(served.model)
            served.set_objectives(objectives)
            cost, overhead_s = warm_up(served, arena, policy)
            if capacity is None:
                sizes = arena.engine.places, arena.engine.kv_tokens
                capacity = capacity_per_s(arena.trace.requests, arena.cost or cost, *sizes)
                around = f"{1000 * overhead_s:.0f} ms around it"
                console.print(f"capacity {capacity:.2f} requests/s, {cost}, {around}")
            for run in wish.runs(arena, capacity):
                kept.append(one(served, arena, policy, run, objectives, overhead_s))
                offered, good = kept[-1].figures.offered_per_s, kept[-1].figures.good_per_s
                console.print(f"  {policy.name}, {run.name}: {offered:.1f}/s offered, {good:.2f} good")
        if keep_at is not None:
            keep(keep_at, kept)
    return kept


def warm_up(served: Served, arena: Arena, policy: Policy) -> tuple[StepCost, float]:
    """Until the engine has learned what its steps cost; and what a request takes beside its first step."""
    target = Target(served.url, served.model, served.keys, policy.tells_tier)
    requests = at_rate(arena.trace, 4.0, WARM_UP_S).requests
    for _ in range(5):
        send_from(target, plan_of(requests))
        time.sleep(2.0)  # gauges are told every now and then
        if (cost := served.learned_cost()) is not None:
            return cost, around_engine_s(target, arena, cost)
    raise RuntimeError("the engine has not learned its cost")


def around_engine_s(target: Target, arena: Arena, cost: StepCost) -> float:
    """Of requests that come alone, all but the step that computes their prompts."""
    alone = TracedRequest(0.0, 64, 2, arena.trace.requests[0].tenant, Tier.STANDARD.label)
    sent = send_from(target, plan_of([replace(alone, at_s=0.5 * number) for number in range(15)]))
    firsts = sorted(each.first_token_s for each in sent.results if each.first_token_s is not None)
    return max(0.0, percentile(firsts, 0.5) - cost.step_ms(StepShape(64, 0, 0)) / 1000)


def one(
    served: Served, arena: Arena, policy: Policy, run: Run, objectives: Objectives, overhead_s: float
) -> Kept:
    target = Target(
        served.url,
        served.model,
        served.keys,
        policy.tells_tier,
        run.retries,
        gives_up_s=arena.seconds + max(arena.first_token_s.values()) + GRACE_S,
    )
    outcomes = send_from(target, plan_of(run.plan.requests), arena.clients).results
    served.wait_until_idle()
    cost = served.learned_cost() or arena.cost or COST
    batch = usual_batch(arena.trace.requests, arena.engine.places, arena.engine.kv_tokens)
    others = [each for each in outcomes if each.tenant != FLOODER]
    judged = partial(work_ms, cost=cost, batch=batch)
    figures = judge(outcomes, objectives, (arena.settle_s, arena.seconds), judged)
    compared = None
    if run.retries == 0 and policy.simulated is not None:
        foretold = foretell(run, policy, objectives, cost, arena.engine, overhead_s)
        compared = compare(outcomes, objectives, foretold)
    return Kept(
        policy=policy.name,
        run=run.name,
        times=run.times,
        clamped=arena.trace.clamped,
        first_token_s={tier.label: each for tier, each in arena.first_token_s.items()},
        cost=cost,
        figures=figures,
        others=judge(others, objectives, (arena.settle_s, arena.seconds), judged),
        compared=compared,
        recovery_s=recovery_s(outcomes, objectives, BURST_AT_S) if run.name == "burst" else None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, help="a file of arrivals; generated if none is given")
    parser.add_argument(
        "--context", type=int, default=2048, help="longer requests are shortened, and counted"
    )
    parser.add_argument(
        "--rate-factor", default="1,2,5,10", help="rates, as multiples of the engine's capacity"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="of each run")
    parser.add_argument("--policies", default="all", help=f"all, or some of: {_names()}")
    parser.add_argument("--noisy", action="store_true", help="also one tenant who floods")
    parser.add_argument("--burst", action="store_true", help="also a burst")
    parser.add_argument("--retry-storm", action="store_true", help="also clients that retry at once")
    parser.add_argument("--real-model", action="store_true", help="the default model instead of a paced one")
    parser.add_argument("--clients", type=int, default=1, help="processes that send")
    parser.add_argument("--keep", type=Path, help="where to write the measurements, as JSON")
    parser.add_argument("--draw", type=Path, help="plot the measurements in such a file, and measure nothing")
    parser.add_argument("--plots", type=Path, default=Path("docs/plots"), help="where to write the plots")
    asked = parser.parse_args()
    console = Console(width=170)
    if asked.draw:
        kept = read(asked.draw)
        draw(Plots(asked.plots), kept)
        sys.exit(not show(console, kept))
    factors = [float(each) for each in asked.rate_factor.split(",") if each]
    wish = Wish(chosen(asked.policies), factors, asked.noisy, asked.burst, asked.retry_storm)
    kept = measure(arena_of(asked), [wish], console, asked.keep)
    sys.exit(not show(console, kept))


def arena_of(asked: argparse.Namespace) -> Arena:
    trace = in_tiers(arrivals(asked.trace).clamp(asked.context))
    given: dict[str, Any] = {
        "seconds": asked.seconds,
        "settle_s": asked.seconds / 4,
        "clients": asked.clients,
    }
    if asked.real_model:
        # What two cores do: a tenth of a GPU's places.
        small = Engine(places=8, kv_tokens=8192, step_tokens=256, depth=1)
        slow = {tier: 4 * each for tier, each in INTER_TOKEN_S.items()}
        return Arena(trace, None, small, sized(small), **given, inter_token_s=slow)
    return Arena(trace, COST, ENGINE, paced(COST, ENGINE), **given)


def arrivals(path: Path | None) -> Trace:
    return synthetic_trace(1, 600.0) if path is None else read_trace(path)


def chosen(names: str) -> list[Policy]:
    if names == "all":
        return list(POLICIES)
    known = {policy.name.replace(" ", "-"): policy for policy in POLICIES}
    if unknown := [name for name in names.split(",") if name not in known]:
        sys.exit(f"unknown policy {unknown[0]}; there are: {_names()}")
    return [known[name] for name in names.split(",")]


def _names() -> str:
    return ", ".join(policy.name.replace(" ", "-") for policy in POLICIES)


if __name__ == "__main__":
    main()
