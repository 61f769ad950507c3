from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from tests.mutants.drawing import all_mutants, draw
from tests.mutants.mutant import (
    SURVIVED,
    Mutant,
    Place,
    find,
    mutated,
    read_record,
    statement_lines,
    write_record,
)
from tests.mutants.running import Sources, in_fork

SOURCE = """\
LIMIT = 3


class Queue:
    def is_full(self, waiting: int = 0) -> bool:
        return waiting >= LIMIT


def part(of: float) -> float:
    if of > 0:
        return of / 2
    if of > 0:
        return (
            of * 2
        )
    return 0.0
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "queue.py").write_text(SOURCE)
    return tmp_path


def the_mutant(tree: Path, after: str) -> Mutant:
    return next(each for each in all_mutants(tree, "queue.py") if each.after == after)


def test_mutants_differ_in_one_line_of_one_function_and_all_compile(tree: Path) -> None:
    found = list(all_mutants(tree, "queue.py"))
    assert {each.function for each in found} == {"Queue.is_full", "part"}
    for mutant, place in find(found, tree, ["queue.py"]).items():
        assert place
        source = mutated(SOURCE, place.line, mutant.after)
        compile(source, "queue.py", "exec")
        assert sum(a != b for a, b in zip(SOURCE.splitlines(), source.splitlines(), strict=True)) == 1


def test_a_sample_is_the_same_for_the_same_seed_and_keeps_to_it_where_other_functions_change(
    tree: Path,
) -> None:
    drawn = draw(tree, ["queue.py"], 6, seed=1)
    assert len(drawn) == 6
    assert drawn == draw(tree, ["queue.py"], 6, seed=1) != draw(tree, ["queue.py"], 6, seed=2)
    (tree / "queue.py").write_text(SOURCE.replace("LIMIT", "MOST").replace("waiting", "queued"))
    again = draw(tree, ["queue.py"], 6, seed=1)
    assert {each for each in drawn if each.function == "part"} & set(again)


def test_equal_lines_of_one_function_are_told_apart(tree: Path) -> None:
    second = the_mutant(tree, "if of >= 0:")._replace(nth=1)
    assert find([second], tree, ["queue.py"]) == {second: Place("queue.py", 12)}


def test_a_line_is_found_where_its_file_or_its_function_has_moved_to(tree: Path) -> None:
    mutant = the_mutant(tree, "return waiting > LIMIT")
    (tree / "router").mkdir()
    moved = (tree / "queue.py").rename(tree / "router" / "queue.py")
    assert find([mutant], tree, ["router/queue.py"]) == {mutant: Place("router/queue.py", 6)}
    moved.rename(tree / "router" / "line.py").write_text("# Of those who wait.\n" + SOURCE)
    assert find([mutant], tree, ["router/line.py"]) == {mutant: Place("router/line.py", 7)}


def test_a_line_that_reads_otherwise_or_is_of_another_function_and_file_is_gone(tree: Path) -> None:
    mutant = the_mutant(tree, "return waiting > LIMIT")
    (tree / "queue.py").write_text(SOURCE.replace("waiting >= LIMIT", "LIMIT <= waiting"))
    assert find([mutant], tree, ["queue.py"]) == {mutant: None}
    (tree / "other.py").write_text(SOURCE.replace("is_full", "refuses"))
    assert find([mutant], tree, ["other.py"]) == {mutant: None}


def test_the_tests_of_a_line_are_those_of_its_whole_statement_without_what_it_decides_about() -> None:
    assert statement_lines(SOURCE, 14) == range(13, 16)
    assert statement_lines(SOURCE, 10) == range(10, 11)


def test_what_is_recorded_is_read_again(tree: Path) -> None:
    outcomes = dict.fromkeys(all_mutants(tree, "queue.py"), SURVIVED)
    outcomes[the_mutant(tree, "return of * 2")] = "tests/test_queue.py"
    write_record(tree / "record.tsv", outcomes)
    assert read_record(tree / "record.tsv") == outcomes


def test_a_mutant_is_what_runs_and_what_is_read_and_afterwards_neither(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tree))
    monkeypatch.chdir(tree)
    (tree / "queue.py").rename(tree / "mutable_queue.py")
    module = importlib.import_module("mutable_queue")
    part, is_full = module.part, module.Queue().is_full
    with Sources(["mutable_queue.py"], []).mutated("mutable_queue.py", 11, "return of * 3") as lines:
        assert (part(2.0), is_full(3)) == (6.0, True)
        assert "return of * 3" in (tree / "mutable_queue.py").read_text()
        assert lines == range(11, 12)
    assert part(2.0) == 1.0
    assert (tree / "mutable_queue.py").read_text() == SOURCE
    del sys.modules["mutable_queue"]


def test_what_a_fork_sent_before_it_died_arrives() -> None:
    def work(out: object) -> None:
        out.send("begun")  # type: ignore[attr-defined]
        raise SystemExit(1)

    assert list(in_fork(work, cpu_limit_s=10)) == ["begun"]
