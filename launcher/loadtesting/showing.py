"""The end of a load test on the terminal: a table, where the report is, and what was not good enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadtest.report.figures import Figures, figures_of, grouped, verdict_of

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from loadtest.results import LoadRun

_COUNTS = ("answered", "refused", "failed")
_TIMES = ("first token p50", "p95", "between tokens p50", "p95", "end p95")
_COLUMNS = ("", *_COUNTS, *_TIMES, "tokens/s")


def show(run: LoadRun, report: Path, console: Console) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in _COLUMNS:
        table.add_column(column, justify="right" if column else "left")
    for kind, figures in sorted(grouped(run, lambda each: each.kind).items()):
        table.add_row(kind, *_cells(figures))
    whole = figures_of(run.results, run.slo, run.duration_s)
    table.add_row("all", *_cells(whole), style="bold")
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
        found.append(f"{whole.failed / ended:.1%} of the requests failed; {fail_ratio:.1%} may.")
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
