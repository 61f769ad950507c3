"""What the arena showed: the tables, the plots, and the file between them."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.objectives.arena_goals import OURS, Kept, goals
from benchmarks.objectives.judging import TierFigures
from benchmarks.plots import Plots
from python_backend.wire.tiers import Tier


def show(console: Console, kept: Sequence[Kept]) -> bool:
    console.print(_goodput(kept))
    console.print(_refusals(kept))
    if any(each.compared for each in kept):
        console.print(_foretold(kept))
    is_met = True
    for goal in goals([each for each in kept if each.policy == OURS]):
        console.print(f"{goal.what}: {'met' if goal.is_met else 'MISSED'}")
        is_met &= goal.is_met
    return is_met


def _goodput(kept: Sequence[Kept]) -> Table:
    tiers = [f"{tier.label}: good, first p50/p95, between p95" for tier in Tier]
    table = Table("run", "policy", "offered/s", "good/s", *tiers, "tenants (Jain)", "left", "failed")
    for each in kept:
        found = each.figures
        table.add_row(
            each.run,
            each.policy,
            f"{found.offered_per_s:.1f}",
            f"{found.good_per_s:.2f}",
            *(_of_tier(found.tiers[tier.label]) for tier in Tier),
            f"{found.fairness:.3f}",
            f"{found.left}",
            f"{sum(found.failed.values())}",
        )
    return table


def _of_tier(found: TierFigures) -> str:
    first, between = found.first_token_s, found.inter_token_s
    times = f"{_s(first.p50)}/{_s(first.p95)}, {_s(between.p95)}"
    return f"{found.good_share:.0%}, {times}"


def _s(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f} s" if value >= 1 else f"{1000 * value:.0f} ms"


def _refusals(kept: Sequence[Kept]) -> Table:
    names = "run", "policy", "refused", "at once, p50/p99", "after a wait", "Retry-After least/p50/most"
    table = Table(*names, "work by tier")
    for each in kept:
        found, wait = each.figures, each.figures.retry_after_s
        table.add_row(
            each.run,
            each.policy,
            f"{found.refused}",
            f"{_s(found.refusal_s.p50)}/{_s(found.refusal_s.p99)}",
            f"{found.refused_late}",
            f"{_s(wait.least)}/{_s(wait.p50)}/{_s(wait.most)}",
            "/".join(f"{found.tiers[tier.label].service_share:.0%}" for tier in Tier),
        )
    return table


def _foretold(kept: Sequence[Kept]) -> Table:
    table = Table(
        "run", "policy", "good/s: measured, predicted", *(f"{tier.label}: p95 first token" for tier in Tier)
    )
    for each in kept:
        if (found := each.compared) is None:
            continue
        cells = []
        for tier in Tier:
            seen_s = found.first_token_p95_s[tier.label]
            foretold_s = found.foretold_first_token_p95_s.get(tier.label)
            cells.append(f"{_s(seen_s)}, {_s(foretold_s)}{_off(found.first_token_errors.get(tier.label))}")
        good = f"{found.goodput_per_s:.2f}, {found.foretold_goodput_per_s:.2f}{_off(found.goodput_error)}"
        table.add_row(each.run, each.policy, good, *cells)
    return table


def _off(error: float | None) -> str:
    return "" if error is None else f" ({error:.0%} off)"


def draw(plots: Plots, kept: Sequence[Kept], name: str = "arena") -> None:
    steady = [each for each in kept if each.run.endswith("x")]
    runs = list(dict.fromkeys(each.run for each in steady))
    found = {(each.policy, each.run): each.figures.good_per_s for each in steady}
    series = {
        policy: [found.get((policy, run), nan) for run in runs]  # not each is measured with all
        for policy in dict.fromkeys(each.policy for each in steady)
    }
    title = "Requests a second that met their objectives, by offered load relative to the capacity"
    plots.bars(name, title, "good requests/s", runs, series)
    compared = [(each.run, each.compared) for each in kept if each.policy == OURS and each.compared]
    seen = [found.goodput_per_s for _, found in compared]
    foretold = [found.foretold_goodput_per_s for _, found in compared]
    title = "The same over all arrivals, measured and simulated"
    series = {"seen": seen, "simulated": foretold}
    plots.bars(f"{name}-simulated", title, "good requests/s", [run for run, _ in compared], series)


def keep(path: Path, kept: Sequence[Kept]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(kept))


def read(path: Path) -> list[Kept]:
    return msgspec.json.decode(path.read_bytes(), type=list[Kept])
