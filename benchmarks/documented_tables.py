"""Tables that a benchmark writes into a page of the documentation, between marks that stay there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def write_between_marks(page: Path, name: str, text: str) -> None:
    """Replaces what is between `<!-- NAME: begin -->` and `<!-- NAME: end -->`."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    before, has_begin, rest = page.read_text().partition(begin)
    _, has_end, after = rest.partition(end)
    if not (has_begin and has_end):
        raise ValueError(f"{page} has no markers for {name}: it needs {begin.strip()} and {end}")
    page.write_text(f"{before}{begin}{text.rstrip()}\n{end}{after}")
