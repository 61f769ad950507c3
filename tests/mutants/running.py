"""Runs tests on a copy of the tree: collected once, then in a fork for each mutant."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import pairwise, zip_longest
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest
from hypothesis import settings

from tests.mutants.mutant import mutated, statement_lines
from tests.test_architecture import OURS

# What waits for something that does not come is ended by the clock. A loop without an end is ended by the
# processor's time, however busy the machine is.
WAITING_LIMIT_S = 400.0
MEMORY_LIMIT_BYTES = 6 << 30
# They change the standard library when they are imported.
REPLACING = {"gevent", "locust"}
IN_TURN = (
    *("-q", "--no-summary", "-s", "-m", "not stack"),
    *("-p", "no:cacheprovider", "-p", "no:xdist"),
    # What this process has imported already is no test.
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
)


class Covered(NamedTuple):
    """Which tests came by which line, how long each took, which fail, and what all of them imported."""

    tests: dict[str, dict[int, set[str]]]  # by file and line
    took_s: dict[str, float]  # of the processor
    failed: set[str]
    modules: set[str]


@contextmanager
def copy_of(root: Path, into: Path) -> Iterator[Path]:
    """Copy what git knows of, and what of it is compiled; look from there, and import it before all else."""
    listed = subprocess.check_output(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=root, text=True
    )
    names = {name for name in listed.split("\0") if (root / name).is_file()}
    for folder in {Path(name).parent for name in names if name.endswith(".py")}:
        names |= {str(path.relative_to(root)) for path in (root / folder / "__pycache__").glob("*.pyc")}
    for name in names:
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, into / name)
    os.environ["PYTHONPATH"] = str(into)
    before = Path.cwd()
    os.chdir(into)
    sys.path.insert(0, str(into))
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        del sys.modules[name]
    try:
        yield into
    finally:
        os.chdir(before)
        sys.path.remove(str(into))


class Trials:
    """A pytest plugin: once the tests are collected, the work runs them as often as it likes."""

    def __init__(self, work: Callable[[Trials], None]) -> None:
        self._work = work
        self._items: dict[str, pytest.Item] = {}
        self._tell: Callable[[str, bool], None] = lambda nodeid, is_failed: None
        self.not_collected: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        settings.register_profile("same", settings(settings.get_profile("usual"), derandomize=True))
        settings.load_profile("same")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        # The store decides nothing, and a server that a dead fork has left would stay.
        self._items = {item.nodeid: item for item in session.items if "postgresql" not in item.nodeid}
        self._work(self)
        return True

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.not_collected.append(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._tell(report.nodeid, report.failed)

    def cover(self, sources: Collection[str], progress: Callable[[str], None]) -> Covered:
        """Run every test, and record which came by which line of the sources."""

        def work(out: Connection) -> None:
            from coverage import Coverage

            begun: list[tuple[str, float]] = []
            failed: set[str] = set()

            def tell(nodeid: str, is_failed: bool) -> None:
                failed.update({nodeid} if is_failed else ())

            def begin(nodeid: str) -> None:
                begun.append((nodeid, time.process_time()))
                watch.switch_context(nodeid)
                out.send(nodeid)

            self._tell = tell
            paths = {str(Path(each).resolve()): each for each in sources}
            watch = Coverage(data_file=None, config_file=False, include=list(paths))
            watch.start()
            self._run(list(self._items), begin, lambda: False)
            watch.stop()
            begun.append(("", time.process_time()))
            took_s = {nodeid: end_s - begin_s for (nodeid, begin_s), (_, end_s) in pairwise(begun)}
            data = watch.get_data()
            tests = {
                each: {
                    line: {*names} - {""} - failed for line, names in data.contexts_by_lineno(path).items()
                }
                for path, each in paths.items()
            }
            out.send((tests, took_s, failed, set(sys.modules)))

        for message in in_fork(work, None):
            if isinstance(message, tuple):
                return Covered(*message)
            progress(str(message))
        raise RuntimeError("the tests died before they had told which lines they cover: run them by pytest")

    def failures(self, tests: list[str], cost_s: float, first_alone: bool) -> list[str]:
        """Return which of these tests fail in a fork, the one that takes far too long or dies included."""

        def work(out: Connection) -> None:
            failed: list[str] = []

            def tell(nodeid: str, is_failed: bool) -> None:
                if is_failed and nodeid not in failed:
                    failed.append(nodeid)
                    out.send((nodeid, True))

            self._tell = tell
            self._run(tests, lambda nodeid: out.send((nodeid, False)), lambda: first_alone and bool(failed))
            out.send(None)

        failed: list[str] = []
        running = ""
        for message in in_fork(work, round(10 + 2 * cost_s)):
            if message is None:
                return failed
            running, is_failed = message
            if is_failed:
                failed.append(running)
                if first_alone:
                    return failed
        return failed if running in failed else [*failed, running]

    def _run(self, tests: list[str], begin: Callable[[str], None], is_over: Callable[[], bool]) -> None:
        items = [self._items[each] for each in tests]
        for item, following in zip_longest(items, items[1:]):
            begin(item.nodeid)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if is_over():
                break


def in_fork(work: Callable[[Connection], None], cpu_limit_s: int | None) -> Iterator[Any]:
    """Yield what the work sends from a fork, until it ends, dies, or is ended with all that it started."""
    context = get_context("fork")
    receiving, sending = context.Pipe(duplex=False)

    def child() -> None:
        receiving.close()
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        if cpu_limit_s is not None:
            # Programs that tests start read the mutant from its file, and leave nothing of it behind.
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_limit_s, cpu_limit_s))
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
        work(sending)
        os._exit(0)

    process = context.Process(target=child)
    process.start()
    sending.close()
    try:
        with suppress(EOFError):
            while cpu_limit_s is None or receiving.poll(WAITING_LIMIT_S):
                yield receiving.recv()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
        receiving.close()


class Sources:
    """The modules that mutants are in, as they are imported and as files."""

    def __init__(self, paths: Collection[str], modules: Collection[str]) -> None:
        for name in sorted(modules):  # so that no fork has to
            with suppress(Exception):
                if name.partition(".")[0] in REPLACING:
                    continue
                import_module(name)
        gc.unfreeze()
        self._functions: dict[str, list[FunctionType]] = {str(Path(each).resolve()): [] for each in paths}
        for each in gc.get_objects():
            if type(each) is FunctionType and each.__code__.co_filename in self._functions:
                self._functions[each.__code__.co_filename].append(each)
        gc.freeze()

    @contextmanager
    def mutated(self, path: str, line: int, after: str) -> Iterator[range]:
        """Change one line for a while, and yield the lines of the statement that it is in.

        Functions have the mutant's code at once, wherever they were imported to. Programs read it.
        """
        file = Path(path).resolve()
        source, stat = file.read_text(), file.stat()
        code = {
            _place(each): each for each in _codes(compile(mutated(source, line, after), str(file), "exec"))
        }
        changed = [
            (function, function.__code__)
            for function in self._functions[str(file)]
            if _place(function.__code__) in code
            and function.__code__.co_freevars == code[_place(function.__code__)].co_freevars
        ]
        for function, old in changed:
            function.__code__ = code[_place(old)]
        file.write_text(mutated(source, line, after))
        os.utime(file, (stat.st_atime, stat.st_mtime + 2))  # or Python takes what it compiled before
        try:
            yield statement_lines(source, line)
        finally:
            for function, old in changed:
                function.__code__ = old
            file.write_text(source)
            os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _place(code: CodeType) -> tuple[str, int]:
    return code.co_name, code.co_firstlineno
