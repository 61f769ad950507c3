"""`python -m benchmarks.autoscaling TRACE...`: replicas over a day by four ways to scale, and what they keep.

A trace gives lengths and how its rate moves from minute to minute; a day's curve is laid over it, from a
fifth at night to its peak. Each way plays the same arrivals in the fleet simulator.
"""

from __future__ import annotations

import argparse
from collections import Counter
from math import ceil
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from loadtest.traces import Trace, read_trace, tiers_by_chance
from python_backend.wire.tiers import Tier
from router.control.scaling.replicas import ScalingSettings
from router.core.objective import Objective
from simulator.fleet.cell import PERIOD_S, CellPlan, compiled_shape
from simulator.fleet.fleet import FleetPlan, play_fleet
from simulator.fleet.play import price_s
from simulator.fleet.scalers import Fixed, Foreknown, QueueLength, Scaler, Wanted
from simulator.planning.capacity import CapacitySearch
from simulator.planning.profiles import Profile, best_of, known_profiles
from simulator.planning.proof import lengths_of
from simulator.planning.wish import day

OBJECTIVES = {
    Tier.INTERACTIVE: Objective("m", Tier.INTERACTIVE, 1.0, 0.05),
    Tier.STANDARD: Objective("m", Tier.STANDARD, 3.0, 0.1),
    Tier.BATCH: Objective("m", Tier.BATCH, 30.0),
}
START_S, GOAL, DAY_S = 90.0, 0.95, 86_400.0


def day_of(trace: Trace, peak_per_s: float) -> list[float]:
    minutes = Counter(int(each.at_s // 60) for each in trace.requests)
    count = int(trace.duration_s // 60)
    bursts = [minutes[minute] for minute in range(count)]
    mean, hours = sum(bursts) / count, day(0.2)
    found = []
    for period in range(int(DAY_S / PERIOD_S)):
        at_s = period * PERIOD_S
        hour, part = int(at_s // 3600), at_s % 3600 / 3600
        curve = hours[hour] * (1 - part) + hours[(hour + 1) % 24] * part
        found.append(peak_per_s * curve * bursts[int(at_s // 60) % count] / mean)
    return found


def profile_named(gpu: str, precision: str) -> Profile:
    return next(
        each
        for each in best_of(known_profiles())
        if (each.model, each.gpu, each.precision, each.tensor_parallel) == ("llama-8b", gpu, precision, 1)
    )


def compare(path: Path, peak_per_s: float, console: Console) -> None:
    trace = read_trace(path).with_tiers(
        tiers_by_chance({"interactive": 60.0, "standard": 30.0, "batch": 10.0}, 0)
    )
    profile = profile_named("l40s", "fp8")
    capacity = CapacitySearch(trace, OBJECTIVES, GOAL).of(profile)
    rates, lengths = day_of(trace, peak_per_s), lengths_of(trace)
    shape = compiled_shape(CellPlan(profile.shape(), OBJECTIVES, lengths, (), 1, 1, 0))
    few = lengths[:: max(len(lengths) // 400, 1)]
    work = float(np.mean([price_s(shape, int(each.prompt), int(each.output)) for each in few]))
    unit = capacity.per_s * work / 0.9  # within objectives it is nine tenths busy
    batch = capacity.at.mean_batch if capacity.at else 32.0
    most = 3 * ceil(max(rates) / capacity.per_s) + 2
    console.print(f"{trace.name}: {capacity.per_s:.1f} requests/s a replica, at most {max(rates):.0f}/s")

    def play(scaler: Scaler) -> tuple[float, float]:
        begin = max(1, ceil(rates[0] / capacity.per_s) + 1)
        plan = FleetPlan(
            profile.shape(), OBJECTIVES, lengths, rates, begin, start_s=START_S, unit=unit, most=most,
            cell_replicas=most,
        )  # fmt: skip
        played = play_fleet(plan, scalers=[scaler])
        return played.share("good"), played.replica_hours

    table = Table("scaling", "good", "replica hours", "of the fixed one")
    fixed, hours = None, 0.0
    for replicas in range(max(ceil(max(rates) / capacity.per_s / 2), 1), most):
        good, hours = play(Fixed(replicas))
        fixed = (f"fixed, {replicas} replicas", good, hours)
        if good >= GOAL + 0.02:
            break
    assert fixed is not None
    rows = [fixed]
    rows += [
        (f"queue length (HPA), target {part:.0%}", *play(QueueLength(part * batch))) for part in (0.5, 0.7)
    ]
    rows.append(("inflight_wanted_replicas", *play(Wanted(ScalingSettings(start_s=START_S)))))
    rows.append(("rates known beforehand", *play(Foreknown(tuple(rates), PERIOD_S, work, START_S))))
    for name, good, took in rows:
        table.add_row(name, f"{100 * good:.2f} %", f"{took:.1f}", f"{100 * took / hours:.0f} %")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--peak", type=float, default=40.0, help="requests a second at the peak of the day")
    asked = parser.parse_args()
    for path in asked.traces:
        compare(path, asked.peak, Console(width=100))


if __name__ == "__main__":
    main()
