"""`python -m benchmarks.fleet_growth [--hour]`: what the fleet simulator takes, and how that grows.

Requests, replicas or tenants grow while the others stay; in CPU time, which other work changes little.
With --hour first the goal itself: an hour of 50,000 requests a second on 6,000 replicas, in two processes.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.autoscaling import OBJECTIVES, profile_named
from simulator.fleet.cell import PERIOD_S
from simulator.fleet.fleet import FleetPlan, play_fleet
from simulator.fleet.state import Array, sample
from simulator.svg import Panel, draw

RATE_PER_REPLICA, REPLICAS, SECONDS, TENANTS = 50_000 / 6_000, 128, 120.0, 16
GROWTH = (0.25, 0.5, 1, 2, 4)
GOAL_S, GOAL_BYTES = 600.0, 8 << 30


def lengths(tenants: int, count: int = 20_000) -> Array:
    """As chats have them: many short ones, some long; tiers 60, 30 and 10 of 100."""
    chance = np.random.default_rng(0)
    prompts = np.clip(chance.lognormal(6.0, 1.0, count), 8, 8192).astype(int)
    outputs = np.clip(chance.lognormal(5.0, 0.8, count), 4, 2048).astype(int)
    tiers = chance.choice(3, count, p=(0.6, 0.3, 0.1))
    return sample(prompts, outputs, tiers, chance.integers(0, tenants, count))


def plan_of(rate: float, replicas: int, tenants: int, seconds: float) -> FleetPlan:
    shape = profile_named("h200", "bf16").shape()
    rates = [rate] * int(seconds / PERIOD_S)
    return FleetPlan(shape, OBJECTIVES, lengths(tenants), rates, replicas, zones=3)


@dataclass(frozen=True)
class Cost:
    took_s: float
    cpu_s: float
    requests: int
    most_bytes: int  # of any one process so far
    good: float


def measured(plan: FleetPlan, processes: int = 1) -> Cost:
    began_s, before_s = time.monotonic(), _cpu_s()
    played = play_fleet(plan, processes)
    requests = int(played.periods["offered"].sum())
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    most = max(each.ru_maxrss for each in used) * 1024
    return Cost(time.monotonic() - began_s, _cpu_s() - before_s, requests, most, played.share("good"))


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def grown(part: float) -> dict[str, tuple[float, FleetPlan]]:
    """What grows, to how much, and the plan with it."""
    rate = REPLICAS * RATE_PER_REPLICA

    def with_tenants(tenants: int) -> FleetPlan:
        return plan_of(rate, REPLICAS, tenants, SECONDS)

    more: dict[str, tuple[float, Callable[[], FleetPlan]]] = {
        "requests a second": (
            part * rate / 4,
            lambda: replace(with_tenants(TENANTS), rates=[part * rate / 4] * int(SECONDS / PERIOD_S)),
        ),
        "replicas, with the load growing in step": (
            part * REPLICAS,
            lambda: plan_of(part * rate, int(part * REPLICAS), TENANTS, SECONDS),
        ),
        "tenants": (part * TENANTS * 4, lambda: with_tenants(int(part * TENANTS * 4))),
    }
    return {name: (size, make()) for name, (size, make) in more.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hour", action="store_true", help="50,000 requests/s on 6,000 replicas for an hour")
    parser.add_argument("--plots", type=Path, help="write fleet-growth.svg into this folder")
    asked = parser.parse_args()
    console = Console(width=110)
    play_fleet(plan_of(10.0, 3, TENANTS, 10.0))  # compiles
    if asked.hour:
        cost = measured(plan_of(50_000, 6_000, TENANTS, 3600.0), processes=2)
        is_met = cost.took_s < GOAL_S and 2 * cost.most_bytes < GOAL_BYTES
        console.print(
            f"{cost.requests / 1e6:.1f} million requests in {cost.took_s:.0f} s, {cost.cpu_s:.0f} s of CPU, "
            f"{cost.most_bytes / 1e9:.2f} GB a process, {cost.good:.1%} good: {'met' if is_met else 'MISSED'}"
        )
    table = Table("what grows", "to", "requests", "CPU s", "µs a request", "good")
    lines: dict[str, list[tuple[float, float | None]]] = {}
    for part in GROWTH:
        for name, (size, plan) in grown(part).items():
            cost = measured(plan)
            row = (name, f"{size:.0f}", f"{cost.requests:,}", f"{cost.cpu_s:.2f}")
            table.add_row(*row, f"{1e6 * cost.cpu_s / cost.requests:.2f}", f"{cost.good:.1%}")
            lines.setdefault(name, []).append((part, cost.cpu_s))
    console.print(table)
    if asked.plots is not None:
        panel = Panel("What a fleet simulation costs", "CPU s", lines, "times the middle one")
        (asked.plots / "fleet-growth.svg").write_text(draw([panel]))


if __name__ == "__main__":
    main()
