"""The page of two runs: a verdict in words, every figure with how sure its difference is, and the plots."""

from __future__ import annotations

from html import escape

from loadtest.report.comparison import BETTER, CONFIDENCE, WORSE, Comparison, Difference
from loadtest.report.comparison_charts import compared_charts
from loadtest.report.page import Cell, Html, page, percent, plots, rate, table, time
from loadtest.report.report import COMMAND, again
from loadtest.results import LoadRun


def html_of(first: LoadRun, second: LoadRun, comparison: Comparison) -> str:
    verdicts = {row.verdict for row in comparison.rows}
    kind = " missed" if WORSE in verdicts else " kept" if BETTER in verdicts else ""
    title = f"{first.name} against {second.name}"
    parts = [
        f"<header><h1>Load tests: {escape(title)}</h1>",
        *(_what(key, name, run) for key, name, run in (("c1", "First", first), ("c2", "Second", second))),
        "</header>",
        f'<p class="verdict{kind}">{escape(comparison.verdict)}</p>',
        *(f'<p class="warning">{escape(warning)}</p>' for warning in comparison.warnings),
        _differences(comparison),
        "<h2>Plots</h2>",
        plots(compared_charts(first, second)),
        _about(first, second),
        *dict.fromkeys((again(first.about), again(second.about))),
    ]
    return page(f"Load tests: {title}", filter(None, parts))


def _what(key: str, label: str, run: LoadRun) -> str:
    count = sum(each.attempt == 0 for each in run.results)
    told = f"{label}: {run.name} · {run.began_at} · {rate(run.duration_s)} s · {count:,} requests"
    swatch = f'<span class="key" style="background: var(--{key})"></span>'
    return f'<p class="muted">{swatch}{escape(told)}</p>'


def _differences(comparison: Comparison) -> str:
    rows = [
        [
            row.metric,
            _value(row, row.first),
            _value(row, row.second),
            "–" if row.change is None else f"{100 * row.change:+.1f} %",
            _between(row),
            _word(row.verdict),
        ]
        for row in comparison.rows
    ]
    note = (
        f"The difference lies in the interval with {CONFIDENCE:.0%} confidence, from the variation within "
        "the runs (a block bootstrap). One run of each does not show the variation from one start of a "
        "server to the next."
    )
    headings = ["", "first", "second", "change", "difference between", ""]
    return "<h2>Differences</h2>" + table(headings, rows, 1, note)


def _value(row: Difference, value: float | None) -> str:
    if row.unit == "s":
        return time(value)
    return percent(value) if row.unit == "share" else f"{rate(value)} /s"


def _between(row: Difference) -> str:
    if row.low is None or row.high is None:
        return "–"
    if row.unit == "s":
        if max(abs(row.low), abs(row.high)) >= 1:
            return f"{row.low:+,.2f} and {row.high:+,.2f} s"
        return f"{1000 * row.low:+,.1f} and {1000 * row.high:+,.1f} ms"
    if row.unit == "share":
        return f"{100 * row.low:+.1f} and {100 * row.high:+.1f} %"
    return f"{row.low:+,.3g} and {row.high:+,.3g} /s"


def _word(verdict: str) -> Cell:
    return Html(f'<span class="{verdict}">{verdict}</span>') if verdict in (BETTER, WORSE) else verdict


def _about(first: LoadRun, second: LoadRun) -> str:
    names = [*first.about, *(name for name in second.about if name not in first.about)]
    rows: list[list[Cell]] = []
    for name in filter(lambda name: name != COMMAND, names):
        values = [run.about.get(name, "–") for run in (first, second)]
        rows.append([name, *values, "" if values[0] == values[1] else "differs"])
    return "<h2>Machine and versions</h2>" + table(["", "first", "second", ""], rows, 4) if rows else ""
