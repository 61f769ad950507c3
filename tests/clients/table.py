"""The table of docs/clients.md: a row for each client, replaced when it has been tried again."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
HEAD = "| client | version | uses | result | date |\n|---|---|---|---|---|\n"
_TABLE = re.compile(re.escape(HEAD) + r"((?:\|.*\n)*)")
_LONGEST_PROBLEM = 160


@dataclass(frozen=True)
class Outcome:
    """One use, and what was wrong with it, if anything was."""

    use: str
    problem: str = ""


def row(client: str, version: str, outcomes: list[Outcome], date: str) -> str:
    uses = "; ".join(_plain(outcome.use) for outcome in outcomes)
    failed = [f"{_plain(each.use)}: {_plain(each.problem)}" for each in outcomes if each.problem]
    well = len(outcomes) - len(failed)
    result = f"all {well} work" if not failed else f"{well} of {len(outcomes)} work; {'; '.join(failed)}"
    return f"| {client} | {version} | {uses} | {result} | {date} |"


def _plain(text: str) -> str:
    """In one line, and without what would end a cell."""
    return " ".join(text.replace("|", "/").split())[:_LONGEST_PROBLEM]


def rows_of(page: str) -> dict[str, str]:
    """Those that are there, by client."""
    return {line.split("|")[1].strip(): line for line in _found(page)[1].splitlines()}


def replaced(page: str, rows: dict[str, str]) -> str:
    """The page with these rows in the place of older ones; the others stay."""
    lines, found = {**rows_of(page), **rows}, _found(page)
    body = "".join(f"{lines[client]}\n" for client in sorted(lines, key=str.lower))
    return page[: found.start(1)] + body + page[found.end(1) :]


def _found(page: str) -> re.Match[str]:
    found = _TABLE.search(page)
    if found is None:
        raise ValueError("the page has no table of clients")
    return found
