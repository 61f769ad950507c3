"""How simulated figures look: on a terminal, and as plots."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Group

from client.screen_parts import Table
from python_backend.wire.tiers import Tier
from simulator.svg import Panel, draw

if TYPE_CHECKING:
    from rich.console import RenderableType

    from simulator.report import Figures
    from simulator.scenario import Scenario
    from simulator.simulation import Moment

_TENANTS_SHOWN = 8
# The widest of the tables.
LEAST_WIDTH = 80


def tables(all_figures: Sequence[Figures]) -> RenderableType:
    parts: list[RenderableType] = [_overview(all_figures), _engines(all_figures)]
    parts += [_tiers(each) for each in all_figures]
    last = all_figures[-1]
    if len(last.tenants) > 1:
        parts.append(_tenants(last))
    return Group(*parts)


def _table(title: str, headings: Sequence[str], texts: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="left" if heading in texts else "right", no_wrap=True)
    return table


def _overview(all_figures: Sequence[Figures]) -> Table:
    headings = ("rate", "policy", "offered/s", "goodput/s", "good", "refused", "fairness", "predicted")
    table = _table("Requests a second that kept their objectives", headings, texts=("policy",))
    for each in all_figures:
        table.add_row(
            f"{each.rate:g}",
            each.admission,
            f"{each.offered / max(each.offered_s, 1e-9):.2f}",
            f"{each.goodput_per_s:.2f}",
            _percent(each.good / max(each.offered, 1)),
            _percent(each.refused / max(each.offered, 1)),
            f"{each.fairness:.2f}",
            "-" if each.covered_share is None else _percent(each.covered_share),
        )
    return table


def _engines(all_figures: Sequence[Figures]) -> Table:
    table = _table("Engines", ("rate", "policy", "busy", "batch", "tokens/s", "drain"), texts=("policy",))
    for each in all_figures:
        table.add_row(
            f"{each.rate:g}",
            each.admission,
            _percent(each.busy_share),
            f"{each.mean_batch:.1f}",
            f"{each.tokens_per_s:.0f}",
            "-" if each.drain_peak_s is None else f"{each.drain_peak_s:.0f} s",
        )
    return table


def _tiers(figures: Figures) -> Table:
    title = f"Tiers at rate {figures.rate:g} ({figures.admission})"
    # Two headings are one over two columns: first token, and inter-token.
    pairs = ("first\np50", "token\np95", "inter-\np50", "token\np95")
    table = _table(title, ("tier", "offered", "good", "refused", *pairs, "of the\nwork"), texts=("tier",))
    for tier in figures.tiers:
        table.add_row(
            tier.tier,
            str(tier.offered),
            _percent(tier.good_share),
            _percent(tier.refused / max(tier.offered, 1)),
            _time(tier.first_token_p50_s),
            _time(tier.first_token_p95_s),
            _time(tier.inter_token_p50_s),
            _time(tier.inter_token_p95_s),
            _percent(tier.work_share),
        )
    return table


def _tenants(figures: Figures) -> Table:
    title = f"Tenants with most of the work at rate {figures.rate:g} ({figures.admission})"
    headings = ("tenant", "offered", "good", "of the work", "of its fair share")
    table = _table(title, headings, texts=("tenant",))
    for tenant in figures.tenants[:_TENANTS_SHOWN]:
        table.add_row(
            tenant.tenant or "-",
            str(tenant.offered),
            _percent(tenant.good / max(tenant.offered, 1)),
            _percent(tenant.work_share),
            _percent(tenant.of_fair_share),
        )
    return table


def plots(
    directory: Path, all_figures: Sequence[Figures], moments: Sequence[Sequence[Moment]], scenario: Scenario
) -> list[Path]:
    """Goodput and first tokens over the rate, and how each simulation went over its time."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    by_admission = {
        name: list(group)
        for name, group in groupby(
            sorted(all_figures, key=lambda each: each.admission), lambda each: each.admission
        )
    }
    panels = [
        Panel(
            "Goodput",
            "requests/s",
            {
                name: [(each.offered / max(each.offered_s, 1e-9), each.goodput_per_s) for each in group]
                for name, group in by_admission.items()
            },
            "offered, requests/s",
        ),
        *(_first_tokens(tier, by_admission, scenario) for tier in Tier if _has(tier, all_figures)),
    ]
    written.append(_write(directory / "simulation.svg", panels))
    for figures, course in zip(all_figures, moments, strict=True):
        name = f"simulation-{figures.admission}-{figures.rate:g}.svg"
        written.append(_write(directory / name, _course(figures, course)))
    return written


def _first_tokens(tier: Tier, by_admission: dict[str, list[Figures]], scenario: Scenario) -> Panel:
    return Panel(
        f"First token, {tier.label}, p95 of those served",
        "seconds",
        {
            name: [
                (each.offered / max(each.offered_s, 1e-9), each.tier(tier).first_token_p95_s)
                for each in group
                if _has(tier, [each])
            ]
            for name, group in by_admission.items()
        },
        "offered, requests/s",
        goal=scenario.objective(tier).first_token_s,
        is_logarithmic=True,
    )


def _course(figures: Figures, course: Sequence[Moment]) -> list[Panel]:
    lines = {
        "waiting": [(moment.at_s, float(moment.waiting)) for moment in course],
        "running": [(moment.at_s, float(moment.running)) for moment in course],
    }
    drain = {"drain": [(moment.at_s, moment.drain_s) for moment in course]}
    risk = {"risk": [(moment.at_s, moment.risk) for moment in course]}
    title = f"{figures.admission}, rate {figures.rate:g}"
    return [
        Panel(f"{title}: requests", "requests", lines, "seconds"),
        Panel("Time to drain", "seconds", drain, "seconds"),
        Panel("Predicted to be late", "share", risk, "seconds"),
    ]


def _has(tier: Tier, all_figures: Sequence[Figures]) -> bool:
    return any(each.tier == tier.label for figures in all_figures for each in figures.tiers)


def _write(path: Path, panels: Sequence[Panel]) -> Path:
    path.write_text(draw(panels))
    return path


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%" if share < 0.9995 else "100%"


def _time(value_s: float | None) -> str:
    if value_s is None:
        return "-"
    return f"{1000 * value_s:.0f} ms" if value_s < 10 else f"{value_s:.1f} s"
