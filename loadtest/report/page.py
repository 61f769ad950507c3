"""One page of HTML that needs nothing else: its frame, its tables, and how numbers are written on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from loadtest.report.charts import Chart
from loadtest.report.style import STYLE

_MISSING = "–"


@dataclass(frozen=True)
class Html:
    """Text that is markup already."""

    text: str


Cell = str | Html


def markup(cell: Cell) -> str:
    return cell.text if isinstance(cell, Html) else escape(cell)


def page(title: str, body: Iterable[str]) -> str:
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def table(headings: Sequence[str], rows: Sequence[Sequence[Cell]], texts: int = 1, caption: str = "") -> str:
    """The first `texts` columns are words, the others numbers."""

    def cells(values: Iterable[Cell], tag: str) -> str:
        opening = (
            f'<{tag} class="text">' if number < texts else f"<{tag}>" for number in range(len(headings))
        )
        return "".join(
            f"{tagged}{markup(value)}</{tag}>" for tagged, value in zip(opening, values, strict=True)
        )

    head = f"<caption>{escape(caption)}</caption>" if caption else ""
    lines = "\n".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    kind = ' class="words"' if texts >= len(headings) else ""
    return (
        f'<div class="scroll"><table{kind}>{head}<thead><tr>{cells(headings, "th")}</tr></thead>\n'
        f"<tbody>\n{lines}\n</tbody></table></div>"
    )


def cards(values: Sequence[tuple[str, str]]) -> str:
    """A number, and what it is, each."""
    parts = (
        f'<div class="card"><b>{escape(value)}</b><span>{escape(label)}</span></div>'
        for value, label in values
    )
    return f'<div class="cards">{"".join(parts)}</div>'


def plots(charts: Sequence[Chart]) -> str:
    return f'<div class="plots">\n{"".join(map(_figure, charts))}</div>'


def _figure(chart: Chart) -> str:
    caption = f"<figcaption>{escape(chart.title)}<span>{escape(chart.note)}</span></figcaption>"
    return f'<figure id="{chart.name}">{caption}{chart.svg}</figure>\n'


def time(value_s: float | None) -> str:
    if value_s is None:
        return _MISSING
    if value_s < 0.00995:
        return f"{1000 * value_s:.2f} ms"
    if value_s < 0.0995:
        return f"{1000 * value_s:.1f} ms"
    if value_s < 0.9995:
        return f"{1000 * value_s:.0f} ms"
    return f"{value_s:.2f} s" if value_s < 9.995 else f"{value_s:.1f} s"


def percent(share: float | None) -> str:
    """Not 100 where it is not all of them."""
    if share is None:
        return _MISSING
    return f"{100 * share:.1f} %" if share in (0, 1) or 0.0005 <= share < 0.9995 else f"{100 * share:.2f} %"


def rate(value: float | None) -> str:
    if value is None:
        return _MISSING
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}" if value else "0"


def count(value: int) -> str:
    return f"{value:,}"
