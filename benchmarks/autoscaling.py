"""`python -m benchmarks.autoscaling TRACE...`: replicas over a day by several ways, and what they keep.

A trace gives lengths and how its rate moves from minute to minute; a day's curve is laid over it, from a
fifth at night to its peak. Each way plays the same arrivals in the fleet simulator.
"""

from __future__ import annotations

import argparse
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np
from rich.console import Console

from loadtest.traces import Trace, read_trace, tiers_by_chance
from python_backend.wire.tiers import Tier
from router.control.scaling.replicas import ScalingSettings
from router.core.objective import Objective
from simulator.fleet.cell import PERIOD_S, CellPlan, compiled_shape
from simulator.fleet.fleet import FleetPlan, play_fleet
from simulator.fleet.forecasts import price_s
from simulator.fleet.scalers import Fixed, Foreknown, QueueLength, Scaler, Wanted
from simulator.planning.capacity import CapacitySearch
from simulator.planning.profiles import Profile, best_of, known_profiles
from simulator.planning.proof import lengths_of
from simulator.planning.wish import day
from simulator.svg import Panel, draw

OBJECTIVES = {
    Tier.INTERACTIVE: Objective("m", Tier.INTERACTIVE, 1.0, 0.05),
    Tier.STANDARD: Objective("m", Tier.STANDARD, 3.0, 0.1),
    Tier.BATCH: Objective("m", Tier.BATCH, 30.0),
}
START_S, GOAL, DAY_S = 90.0, 0.95, 86_400.0
WANTED = "inflight_wanted_replicas"


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


@dataclass(frozen=True)
class Way:
    """One way to scale, played; `replicas` are those paid for, by period."""

    name: str
    good: float
    hours: float
    replicas: tuple[int, ...]


class Day:
    """The same arrivals for every way."""

    def __init__(self, trace: Trace, peak_per_s: float) -> None:
        self._profile = profile_named("l40s", "fp8")
        self.capacity = CapacitySearch(trace, OBJECTIVES, GOAL).of(self._profile)
        self.rates, self._lengths = day_of(trace, peak_per_s), lengths_of(trace)
        shape = compiled_shape(CellPlan(self._profile.shape(), OBJECTIVES, self._lengths, (), 1, 1, 0))
        few = self._lengths[:: max(len(self._lengths) // 400, 1)]
        self.work = float(np.mean([price_s(shape, int(each.prompt), int(each.output)) for each in few]))
        self.busiest = ceil(max(self.rates) / self.capacity.per_s)
        self._played: dict[int, Way] = {}  # of fixed fleets

    def play(self, name: str, scaler: Scaler) -> Way:
        per_s, most = self.capacity.per_s, 3 * self.busiest + 2
        plan = FleetPlan(
            self._profile.shape(),
            OBJECTIVES,
            self._lengths,
            self.rates,
            max(1, ceil(self.rates[0] / per_s) + 1),
            start_s=START_S,
            unit=per_s * self.work / 0.9,  # within objectives it is nine tenths busy
            most=most,
            cell_replicas=most,
        )
        played = play_fleet(plan, scalers=[scaler])
        return Way(name, played.share("good"), played.replica_hours, played.replicas)

    def fixed(self, good: float) -> Way:
        """The smallest that keeps so much; more replicas never keep less."""
        sizes = range(max(ceil(0.7 * self.busiest), 1), 2 * self.busiest)
        place = bisect_left(sizes, good, key=lambda replicas: self._fixed(replicas).good)
        return self._fixed(sizes[0] + place)

    def _fixed(self, replicas: int) -> Way:
        if replicas not in self._played:
            self._played[replicas] = self.play(f"fixed, {replicas} replicas", Fixed(replicas))
        return self._played[replicas]

    def ways(self) -> Iterator[Way]:
        """The second is what the others are held against: no worse than the first, and always there."""
        batch = self.capacity.at.mean_batch if self.capacity.at else 32.0
        wanted = self.play(WANTED, Wanted(ScalingSettings(start_s=START_S)))
        yield wanted
        yield self.fixed(wanted.good)
        for part in (0.5, 0.7):
            yield self.play(f"queue length (HPA), target {part:.0%}", QueueLength(part * batch))
        known = Foreknown(tuple(self.rates), PERIOD_S, self.work, START_S)
        yield self.play("rates known beforehand", known)


def compare(path: Path, peak_per_s: float, console: Console, plots: Path | None) -> None:
    trace = read_trace(path).with_tiers(
        tiers_by_chance({"interactive": 60.0, "standard": 30.0, "batch": 10.0}, 0)
    )
    played = Day(trace, peak_per_s)
    capacity, most = played.capacity.per_s, max(played.rates)
    console.print(f"{trace.name}: {capacity:.1f} requests/s a replica, at most {most:.0f}/s")
    ways: list[Way] = []
    for way in played.ways():
        ways.append(way)
        console.print(f"  {way.name}: {100 * way.good:.3f} %, {way.hours:.1f} replica hours")
    parts = [f"{way.name} {way.hours / ways[1].hours:.1%}" for way in ways]
    console.print(f"  of the hours of the fixed fleet that keeps as much: {', '.join(parts)}")
    if plots is not None:
        (plots / f"autoscaling-{trace.name}.svg").write_text(draw([panel(ways, played.rates, capacity)]))


def panel(ways: Sequence[Way], rates: Sequence[float], capacity_per_s: float) -> Panel:
    """Means of ten minutes."""
    lines = {way.name: _hourly(way.replicas) for way in ways if "70%" not in way.name}
    lines["work, in whole replicas"] = _hourly([each / capacity_per_s for each in rates])
    return Panel("Replicas over a day", "replicas", lines, "hour")


def _hourly(values: Sequence[float]) -> list[tuple[float, float]]:
    size = int(600 / PERIOD_S)
    return [
        (at * PERIOD_S / 3600, sum(values[at : at + size]) / len(values[at : at + size]))
        for at in range(0, len(values), size)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--peak", type=float, default=40.0, help="requests a second at the peak of the day")
    parser.add_argument("--plots", type=Path, help="folder for a plot of the replicas of each day")
    asked = parser.parse_args()
    for path in asked.traces:
        compare(path, asked.peak, Console(width=100), asked.plots)


if __name__ == "__main__":
    main()
