"""Comma-separated values as a table that a model can read."""

from __future__ import annotations

import csv
import io
import re

from router.content.documents.limits import Unreadable

_DELIMITERS = ",;\t|"
_QUOTED = re.compile(r'"[^"]*"?')


def render_table(text: str) -> str:
    """A Markdown table: the first row is its head, every row is there as it is, however many cells it has."""
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text)) if row]
    except csv.Error as error:
        raise Unreadable(f"is not a table of comma-separated values: {error}") from None
    if not rows:
        raise Unreadable("is a table without any row")
    head, *body = map(_line, rows)
    rule = "|" + " --- |" * len(rows[0])
    return "\n".join([head, rule, *body])


def _delimiter(text: str) -> str:
    """The likeliest: the one that the first line has most of outside of quotes."""
    first = _QUOTED.sub("", text.lstrip()).partition("\n")[0]
    return max(_DELIMITERS, key=first.count)


def _line(row: list[str]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in row) + " |"


def _cell(cell: str) -> str:
    return " ".join(cell.split()).replace("|", "\\|")
