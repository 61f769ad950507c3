"""The end of a load test on the terminal: a table, where the report is, and what was not good enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadtest.report.figures import Figures, figures_of, grouped, verdict_of

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from loadtest.results import LoadRun

_MEDIANS = ("first\ntoken p50", "between\ntokens p50")
_COLUMNS = (
    "",
    "answered",
    "refused",
    "failed",
    _MEDIANS[0],
    "first\ntoken p95",
    _MEDIANS[1],
    "between\ntokens p95",
    "end to\nend p95",
    "tokens/s",
)
_NARROW = 105  # columns of a terminal: below, the medians are in the report alone


def show(run: LoadRun, report: Path, console: Console) -> None:
    from client.screen_parts import Table

    left_out = _MEDIANS if console.width < _NARROW else ()
    table = Table(box=None, pad_edge=False, collapse_padding=bool(left_out))
    for column in _COLUMNS:
        if column not in left_out:
            table.add_column(column, justify="right" if column else "left", vertical="bottom", no_wrap=True)

    def add(name: str, figures: Figures, style: str | None = None) -> None:
        cells = zip(_COLUMNS, (name, *_cells(figures)), strict=True)
        table.add_row(*(cell for column, cell in cells if column not in left_out), style=style)

    for kind, figures in sorted(grouped(run, lambda each: each.kind).items()):
        add(kind, figures)
    whole = figures_of(run.results, run.slo, run.duration_s)
    add("all", whole, "bold")
    console.print(table)
    if run.slo:
        console.print(verdict_of(run, whole)[1])
    console.print(f"Report: {report}", soft_wrap=True)


def complaints(run: LoadRun, fail_ratio: float, checks_slo: bool) -> list[str]:
    """Why the run was not good enough; nothing where it was."""
    whole = figures_of(run.results, run.slo, run.duration_s)
    found = []
    if not whole.answered:
        found.append("Nothing was answered.")
    ended = whole.offered - whole.left
    if ended and whole.failed / ended > fail_ratio:
        found.append(f"{whole.failed / ended:.1%} of the requests failed; at most {fail_ratio:.1%} may.")
    if checks_slo:
        is_kept, text = verdict_of(run, whole)
        if is_kept is False:
            found.append(text)
    return found


def _cells(figures: Figures) -> list[str]:
    first, between, ended = figures.first_token_s, figures.between_tokens_s, figures.ended_s
    return [
        f"{figures.answered:,}",
        f"{figures.refusals:,}",
        f"{figures.failed:,}",
        *(_ms(value) for value in (first.p50, first.p95, between.p50, between.p95, ended.p95)),
        f"{figures.tokens_per_s:,.0f}",
    ]


def _ms(value_s: float | None) -> str:
    if value_s is None:
        return "-"
    return f"{1000 * value_s:,.{0 if value_s >= 0.1 else 1}f} ms"
