"""Writes lines of the decisions differently, and finds which tests notice: python -m tests.mutants."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Collection, Iterable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from tests.division import OF_STACKS
from tests.mutants.mutant import SURVIVED, Mutant, Place, find, read_record, write_record
from tests.mutants.running import IN_TURN, Covered, Sources, Trials, copy_of
from tests.test_architecture import DECISIONS, OURS, PRODUCT, ROOT, module_imports, python_files

RECORD = Path(__file__).parent / "record.tsv"
# They start stacks and browsers, compute on models, or play whole days.
LEFT_OUT = (
    *OF_STACKS,
    *(f"tests/{name}/" for name in ("benchmarks", "clients", "deploy", "embeddings", "simulator", "upgrade")),
    *(f"tests/{name}/" for name in ("engine/cuda", "engine/native", "launcher/commands", "triton_adapter")),
    "tests/router/console/",
    *(f"tests/router/test_{name}.py" for name in ("browsers", "every_route", "fuzz")),
)
# Of the processor, for tests that come by a line; the cheapest are run first.
TESTS_LIMIT_S = 10.0


def main() -> None:
    # The order of sets, for one run to be as the other; and what conftest.py has, too late once a kernel or
    # numpy is imported.
    wanted = {
        "PYTHONHASHSEED": "0",
        "TRITON_INTERPRET": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    if not wanted.items() <= os.environ.items():
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **wanted})
    options = _options()
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 150)
    recorded = read_record(options.record) if options.record.exists() else {}
    before = _drawn(options.sample, options.seed, recorded) if options.sample else recorded
    product = [str(path.relative_to(ROOT)) for folder in PRODUCT for path in python_files(folder)]
    places = find(before, ROOT, product)
    chosen = {
        mutant: place
        for mutant, place in places.items()
        if place and any(options.only in path for path in (mutant.path, place.path))
    }
    gone = [mutant for mutant, place in places.items() if not place]
    now = _outcomes(chosen, before, console, options)
    _tell(console, before, now, gone)
    if options.sample or options.write:
        write_record(options.record, {**{each: before[each] for each in before if each not in gone}, **now})
    if missed := [each for each, outcome in now.items() if outcome == SURVIVED != before[each]]:
        sys.exit(f"{len(missed)} mutants that tests caught before survive now")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument(
        "--only", default="", metavar="MODULE", help="mutants of files with this in their path"
    )
    parser.add_argument(
        "--sample", type=int, metavar="N", help="draw so many anew and record what catches them"
    )
    parser.add_argument("--seed", type=int, default=1, help="another seed draws others")
    parser.add_argument("--record", type=Path, default=RECORD, help="what caught which")
    parser.add_argument("--write", action="store_true", help="record this run's outcomes")
    parser.add_argument(
        "--killers", type=Path, metavar="FILE", help="write all tests that catch each, not one"
    )
    parser.add_argument(
        "--deep", action="store_true", help="run tests that reach the decisions through others, too"
    )
    return parser.parse_args()


def _drawn(count: int, seed: int, recorded: dict[Mutant, str]) -> dict[Mutant, str]:
    from tests.mutants.drawing import draw

    paths = [str(path.relative_to(ROOT)) for folder in DECISIONS for path in python_files(folder)]
    return {mutant: recorded.get(mutant, SURVIVED) for mutant in draw(ROOT, paths, count, seed)}


def _outcomes(
    places: dict[Mutant, Place], before: dict[Mutant, str], console: Console, options: argparse.Namespace
) -> dict[Mutant, str]:
    """Return which test file catches each mutant, or that it survives."""
    sources = sorted({place.path for place in places.values()})
    files = _tests_of(sources, options.deep)
    all_killers: Path | None = options.killers
    found: dict[Mutant, str] = {}

    def work(trials: Trials) -> None:
        with Progress(console=console) as progress:
            task = progress.add_task("the tests on the tree as it is", total=None)
            covered = trials.cover(sources, lambda nodeid: progress.advance(task))
            if left_out := [*trials.not_collected, *sorted(covered.failed)]:
                console.print("left out, for they fail anyway:", *left_out, sep="\n  ")
            progress.update(task, total=len(covered.took_s))
            task = progress.add_task("mutants", total=len(places))
            imported = Sources(sources, covered.modules)
            for mutant, place in places.items():
                with imported.mutated(place.path, place.line, mutant.after) as lines:
                    tests = _in_turn(covered, place, lines)
                    failed = _killers(trials, covered, tests, before[mutant], all_killers)
                found[mutant] = failed[0].partition("::")[0] if failed else SURVIVED
                if all_killers:
                    with all_killers.open("a") as file:
                        file.writelines(
                            f"{mutant.id}\t{covered.took_s[each]:.2f}\t{each}\n" for each in failed
                        )
                if not failed:
                    console.print(f"survived {len(tests)} tests: {mutant}", markup=False, highlight=False)
                progress.advance(task)

    with tempfile.TemporaryDirectory() as directory, copy_of(ROOT, Path(directory) / "tree"):
        console.print(f"collecting {len(files)} test files")
        asked = [*IN_TURN, "--basetemp", str(Path(directory) / "tests"), *files]
        with redirect_stdout(StringIO()) as said:
            status = pytest.main(asked, plugins=[Trials(work)])
        if status == pytest.ExitCode.INTERRUPTED:
            console.print("interrupted")
        elif status:
            sys.exit(f"{said.getvalue()}\npytest ended with {status!r}")
    return found


def _killers(
    trials: Trials, covered: Covered, tests: list[str], before: str, all_killers: Path | None
) -> list[str]:
    """Return which tests catch a mutant: the first that does, or all.

    Where a survivor was caught before, those that take long have their say, too.
    """
    few = _within_limit(tests, covered)
    failed: list[str] = []
    for part in (few, tests[len(few) :] if before != SURVIVED else []):
        if part and not failed:
            cost_s = sum(covered.took_s[each] for each in part)
            failed = trials.failures(part, cost_s, first_alone=not all_killers)
    return failed


def _tests_of(sources: Collection[str], deep: bool) -> list[str]:
    """Return the test files that import one of these modules; where none does, those that come nearest.

    Deep ones are all that reach one of them, through however many others.
    """
    known = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for folder in sorted(OURS)
        for path in python_files(folder)
    }
    imported = {name: module_imports(path, known) for name, path in known.items()}
    file_of = {name: str(path.relative_to(ROOT)) for name, path in known.items()}
    tests = {
        name
        for name, file in file_of.items()
        if Path(file).name.startswith("test_") and not file.startswith(LEFT_OUT)
    }
    found: set[str] = set()
    for source in (name for name, file in file_of.items() if file in sources):
        reached = {source}
        while more := {name for name, others in imported.items() if others & reached} - reached:
            reached |= more
            if reached & tests and not deep:
                break
        found |= reached & tests
    return sorted(file_of[name] for name in found)


def _in_turn(covered: Covered, place: Place, lines: Iterable[int]) -> list[str]:
    """Return the tests that come by these lines: first those named like the file, and the cheapest first."""
    by_line = covered.tests.get(place.path, {})
    tests = set().union(*(by_line.get(line, set()) for line in lines))
    named = f"test_{Path(place.path).stem}"
    return sorted(tests, key=lambda test: (named not in test.partition("::")[0], covered.took_s[test], test))


def _within_limit(tests: list[str], covered: Covered) -> list[str]:
    sums, total_s = [], 0.0
    for test in tests:
        total_s += covered.took_s[test]
        sums.append(total_s)
    return tests[: max(1, sum(each <= TESTS_LIMIT_S for each in sums))]


def _tell(console: Console, before: dict[Mutant, str], now: dict[Mutant, str], gone: list[Mutant]) -> None:
    for each in gone:
        console.print(f"gone: {each}", markup=False, highlight=False)
    for each, outcome in now.items():
        if outcome == SURVIVED != before[each]:
            console.print(f"missed, {before[each]} caught it: {each}", markup=False, highlight=False)
    caught = sum(outcome != SURVIVED for outcome in now.values())
    console.print(f"{caught} of {len(now)} mutants are caught; {len(gone)} of the record are gone")


if __name__ == "__main__":
    main()
