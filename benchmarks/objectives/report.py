"""`make bench ARGS=objectives`: overload, a flood and a burst on a paced engine, and queue delays."""

from __future__ import annotations

from rich.console import Console

from benchmarks.objectives import arena_report, delay_report
from benchmarks.objectives.arena import COST, ENGINE, Arena, Wish, arrivals, measure, paced
from benchmarks.objectives.arrivals import in_tiers
from benchmarks.objectives.delays import SLEEPER, Case
from benchmarks.objectives.embeddings import NO_ENGINE, compare, serving_model
from benchmarks.objectives.scenarios import POLICIES
from benchmarks.plots import Plots

QUEUE_DELAYS = Case(SLEEPER, 0.04, (4.0, 60.0, 220.0), seconds=8.0, window_s=2.0)


def report(console: Console, plots: Plots) -> bool:
    arena = Arena(in_tiers(arrivals(None)), COST, ENGINE, paced(COST, ENGINE))
    ours, *others = POLICIES
    wishes = [
        Wish([ours], (1.0, 2.0, 10.0), noisy=True, burst=True, retry_storm=True),
        Wish(others, (1.0, 2.0), noisy=True),
    ]
    kept = measure(arena, wishes, console)
    is_met = arena_report.show(console, kept)
    arena_report.draw(plots, kept)
    with serving_model(QUEUE_DELAYS, NO_ENGINE) as served:
        points = compare(served, QUEUE_DELAYS, console)
    delay_report.draw(plots, QUEUE_DELAYS, points)
    return delay_report.show(console, QUEUE_DELAYS, points) and is_met
