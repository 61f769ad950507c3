"""Draws a sample of mutants from decisions, by mutmut's operators."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, WhitespaceInclusivePositionProvider
from mutmut.mutation import mutators

from tests.mutants.mutant import Mutant, functions

# Those after which code still runs and decides otherwise. Its others put None or "XX" in place of a value,
# and nearly every test that comes by finds these.
OPERATORS: tuple[tuple[type[cst.CSTNode], Callable[[Any], Any]], ...] = (
    (cst.CSTNode, mutators.operator_swap_op),
    (cst.CSTNode, mutators.operator_keywords),
    (cst.BaseNumber, mutators.operator_number),
    (cst.Name, mutators.operator_name),
    (cst.AugAssign, mutators.operator_augmented_assignment),
    (cst.UnaryOperation, mutators.operator_remove_unary_ops),
    (cst.IfExp, mutators.operator_if_exp),
    (cst.Match, mutators.operator_match),
)


def draw(root: Path, paths: list[str], count: int, seed: int) -> list[Mutant]:
    """Return so many mutants of these files, each file's share by how many it has, and one at least.

    They are chosen by a hash of the seed and their words, so that a change of one function leaves the choice
    in all others as it is.
    """
    of_files = {path: found for path in paths if (found := list(all_mutants(root, path)))}
    share = Fraction(count, sum(map(len, of_files.values())))

    def turn(mutant: Mutant) -> bytes:
        return sha256(f"{seed}\0{mutant.id}".encode()).digest()

    return [
        mutant
        for found in of_files.values()
        for mutant in sorted(sorted(found, key=turn)[: max(1, round(len(found) * share))])
    ]


def all_mutants(root: Path, path: str) -> Iterator[Mutant]:
    """Yield every mutant of a file that differs from it in one line of one function."""
    source = (root / path).read_text()
    lines = source.splitlines()
    inside = [
        (name, node.body[0].lineno, node.end_lineno or 0) for name, node in functions(ast.parse(source))
    ]
    finder = _Finder()
    module = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True)
    module.visit(finder)
    seen = set()
    for where, old, new in finder.found:
        line = where.start.line
        within = next(((name, first) for name, first, last in inside if first <= line <= last), None)
        if within is None or where.end.line != line:
            continue
        name, first = within
        whole, changed = lines[line - 1], module.module.code_for_node(new)
        assert whole[where.start.column : where.end.column] == module.module.code_for_node(old)
        before = whole.strip()
        after = (whole[: where.start.column] + changed + whole[where.end.column :]).strip()
        nth = sum(lines[each - 1].strip() == before for each in range(first, line))
        mutant = Mutant(path, name, nth, before, after)
        if mutant not in seen:
            seen.add(mutant)
            yield mutant


class _Finder(cst.CSTVisitor):
    """Collects what the operators make of each node, types and decorators left out."""

    METADATA_DEPENDENCIES = (WhitespaceInclusivePositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[CodeRange, cst.CSTNode, cst.CSTNode]] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Annotation | cst.Decorator):
            return False
        for kind, operator in OPERATORS:
            if isinstance(node, kind):
                where = self.get_metadata(WhitespaceInclusivePositionProvider, node)
                self.found += [(where, node, new) for new in operator(node)]
        return True
