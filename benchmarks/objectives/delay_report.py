"""Queue delays beside each other: the table, the goals, and the plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.objectives.delays import Case, Point
from benchmarks.plots import Plots

GOAL_BATCH, GOAL_IDLE_MS = 2.0, 1.0


def best_fixed(points: Sequence[Point], per_s: float, objective_s: float) -> Point | None:
    """The one with the largest batches that keeps the objective."""
    kept = [each for each in points if not each.is_tuned and each.per_s == per_s and each.keeps(objective_s)]
    return max(kept, key=lambda point: point.mean_batch, default=None)


def show(console: Console, case: Case, points: Sequence[Point]) -> bool:
    table = Table("delay", "idle", *(f"{per_s:g}/s: p95, batch" for per_s in case.rates_per_s))
    rows: dict[str, list[Point]] = {}
    for point in points:
        rows.setdefault("tuned" if point.is_tuned else f"{point.delay_ms:g} ms", []).append(point)
    for name, mine in rows.items():
        cells = [_cell(point, case.objective_s) for point in mine]
        idle = mine[0].idle_ms
        table.add_row(name, "-" if idle is None else f"{idle:.1f} ms", *cells)
    console.print(f"p95 end to end, objective {case.objective_s * 1000:g} ms (! exceeds it), and mean batch")
    console.print(table)
    met = True
    for what, is_met in goals(case, points).items():
        console.print(f"{what}: {'met' if is_met else 'MISSED'}")
        met &= is_met
    return met


def _cell(point: Point, objective_s: float) -> str:
    mark = "" if point.keeps(objective_s) else " !"
    delay = f" ({point.delay_ms:g} ms)" if point.is_tuned else ""
    return f"{point.p95_ms:.1f} ms{mark}, {point.mean_batch:.2f}{delay}"


def goals(case: Case, points: Sequence[Point]) -> dict[str, bool]:
    tuned = [point for point in points if point.is_tuned]
    highest = max(case.rates_per_s)
    unhurried = next(
        each for each in points if not each.is_tuned and each.delay_ms == 0 and each.per_s == highest
    )
    at_highest = next(each for each in tuned if each.per_s == highest)
    more = at_highest.mean_batch / unhurried.mean_batch
    idle_more_ms = (tuned[0].idle_ms or 0.0) - (unhurried.idle_ms or 0.0)
    return {
        "the tuned delay keeps the objective at each rate": all(
            point.keeps(case.objective_s) for point in tuned
        ),
        f"{more:.2f} times the mean batch of delay 0 at {highest:g}/s (goal {GOAL_BATCH:g})": more
        >= GOAL_BATCH,
        f"idle {idle_more_ms:+.2f} ms against delay 0 (goal {GOAL_IDLE_MS:+g})": idle_more_ms <= GOAL_IDLE_MS,
        _no_fixed_one(case, points): _fits_none(case, points),
    }


def _no_fixed_one(case: Case, points: Sequence[Point]) -> str:
    said = []
    for per_s in case.rates_per_s:
        best = best_fixed(points, per_s, case.objective_s)
        said.append(f"{per_s:g}/s: {'none' if best is None else f'{best.delay_ms:g} ms'}")
    return f"the best fixed delay for one rate is bad at another (best at {', '.join(said)})"


def _fits_none(case: Case, points: Sequence[Point]) -> bool:
    """Each rate's best breaks the objective at another rate, or gives it less than half of its best batch."""
    bests = {per_s: best_fixed(points, per_s, case.objective_s) for per_s in case.rates_per_s}
    for best in bests.values():
        if best is None:
            continue
        elsewhere = [each for each in points if not each.is_tuned and each.delay_ms == best.delay_ms]
        is_bad = any(
            not each.keeps(case.objective_s)
            or (other := bests[each.per_s]) is None
            or each.mean_batch < other.mean_batch / 2
            or (each.idle_ms or 0.0) > min(point.idle_ms or 0.0 for point in points) + GOAL_IDLE_MS
            for each in elsewhere
        )
        if not is_bad:
            return False
    return True


def draw(plots: Plots, case: Case, points: Sequence[Point]) -> None:
    names = [f"{delay_ms:g} ms" for delay_ms in case.delays_ms] + ["tuned"]
    columns: dict[str, list[Point]] = {name: [] for name in names}
    for point in points:
        columns["tuned" if point.is_tuned else f"{point.delay_ms:g} ms"].append(point)
    by_rate = {
        f"{per_s:g}/s": [next(each for each in columns[name] if each.per_s == per_s) for name in names]
        for per_s in case.rates_per_s
    }
    latencies = {rate: [each.p95_ms for each in mine] for rate, mine in by_rate.items()}
    batches = {rate: [each.mean_batch for each in mine] for rate, mine in by_rate.items()}
    title = f"{case.model}: p95 under each queue delay, objective {1000 * case.objective_s:g} ms"
    plots.bars(
        "queue-delay-latency",
        title,
        "p95, ms",
        names,
        latencies,
        goal=1000 * case.objective_s,
        logarithmic=True,
    )
    plots.bars(
        "queue-delay-batch", f"{case.model}: mean batch under each queue delay", "rows", names, batches
    )


@dataclass(frozen=True)
class Kept:
    case: Case
    points: list[Point]


def keep(path: Path, case: Case, points: list[Point]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(Kept(case, points)))


def read(path: Path) -> tuple[Case, list[Point]]:
    kept = msgspec.json.decode(path.read_bytes(), type=Kept)
    return kept.case, kept.points
