"""A mutant: one line of a decision written differently, in words that outlive a refactoring."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

SURVIVED = "survived"


class Mutant(NamedTuple):
    """A line, where it stood when the mutant was drawn, and what stands there instead."""

    path: str
    function: str  # that the line is in, with its class: `Lane.take`
    nth: int  # of the lines of that function that read the same
    before: str
    after: str

    @property
    def id(self) -> str:
        return sha256("\0".join(map(str, self)).encode()).hexdigest()[:8]

    def __str__(self) -> str:
        return f"{self.id} {self.path}, {self.function}: {self.before}  ->  {self.after}"


class Place(NamedTuple):
    """Where a mutant's line stands now."""

    path: str
    line: int


class Line(NamedTuple):
    """A line of code within a function."""

    place: Place
    function: str
    text: str


def functions(
    tree: ast.AST, within: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield the functions of a module and of its classes, by their names; not those within functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{within}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{within}{node.name}.")


def lines_of(root: Path, path: str) -> Iterator[Line]:
    source = (root / path).read_text()
    texts = source.splitlines()
    for name, node in functions(ast.parse(source)):
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1):
            yield Line(Place(path, number), name, texts[number - 1].strip())


def find(mutants: Iterable[Mutant], root: Path, paths: Iterable[str]) -> dict[Mutant, Place | None]:
    """Return where each mutant's line stands now, or None where it is gone.

    A line that has moved is the same if its function still has its name, or its file has and the line stands
    there once. Anything less could be another decision that happens to read the same.
    """
    wanted = {mutant.before for mutant in mutants}
    same_text: dict[str, list[Line]] = {}
    for path in paths:
        for line in lines_of(root, path):
            if line.text in wanted:
                same_text.setdefault(line.text, []).append(line)
    return {mutant: _where(mutant, same_text.get(mutant.before, [])) for mutant in mutants}


def _where(mutant: Mutant, lines: list[Line]) -> Place | None:
    name, function = Path(mutant.path).name, mutant.function.rpartition(".")[2]
    there = [each for each in lines if each.place.path == mutant.path]
    moved = [each for each in lines if Path(each.place.path).name == name]
    for among in (there, moved, lines):
        same = [each for each in among if each.function == mutant.function] or [
            each for each in among if each.function.rpartition(".")[2] == function
        ]
        files = {each.place.path for each in same}
        if len(files) == 1 and mutant.nth < len(same):
            return same[mutant.nth].place
        if among is not lines and len(among) == 1:
            return among[0].place
    return None


def statement_lines(source: str, line: int) -> range:
    """Return the lines of the statement around a line; of one with a body, those of its head."""
    heads = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            end = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            heads.append(range(node.lineno, max(end, node.lineno) + 1))
    return min((head for head in heads if line in head), key=len, default=range(line, line + 1))


def mutated(source: str, line: int, after: str) -> str:
    """Return the source with another text in one line, indented as it was."""
    texts = source.splitlines(keepends=True)
    old = texts[line - 1]
    texts[line - 1] = old[: len(old) - len(old.lstrip())] + after + "\n"
    return "".join(texts)


def read_record(path: Path) -> dict[Mutant, str]:
    """Return the recorded mutants and what caught each, or SURVIVED."""
    found = {}
    for row in path.read_text().splitlines():
        if row and not row.startswith("#"):
            _, file, function, nth, before, after, outcome = row.split("\t")
            found[Mutant(file, function, int(nth), before, after)] = outcome
    return found


def write_record(path: Path, outcomes: dict[Mutant, str]) -> None:
    caught = sum(outcome != SURVIVED for outcome in outcomes.values())
    rows = [f"# {caught} of {len(outcomes)} are caught. Written by python -m tests.mutants."]
    rows.append("# id, file, function, which of its equal lines, line, mutant, caught by")
    rows += ["\t".join([each.id, *map(str, each), outcome]) for each, outcome in sorted(outcomes.items())]
    path.write_text("\n".join(rows) + "\n")
