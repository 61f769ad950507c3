"""The table of what each runtime can do, for docs/runtimes.md: `python -m` this module writes it there."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from python_backend.engine.runtimes.declaration import Capabilities
from python_backend.engine.runtimes.declared import BY_NAME

PAGE = Path(__file__).parents[3] / "docs" / "runtimes.md"
BEGIN, END = "<!-- capabilities: begin -->\n", "<!-- capabilities: end -->\n"


def table() -> str:
    runtimes = list(BY_NAME.values())
    head = ["", *(f"`{each.name}`" for each in runtimes)]
    oldest = [".".join(map(str, each.oldest)) if each.oldest else "" for each in runtimes]
    rows = [["oldest version of its package", *oldest]]
    for field in fields(Capabilities):
        values = [_words(getattr(each.capabilities, field.name)) for each in runtimes]
        rows.append([field.name.replace("_", " "), *values])
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(value)
    return str(value)


def with_table(page: str) -> str:
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
