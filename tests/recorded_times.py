"""How long each test file took when that was last recorded, and which files failed lately on this machine.

`pytest --record-times` writes tests/times.txt: a line a file, with its seconds in `make test` and in
`make test-thorough`. The order of tests, the slices of CI and the time that is left are computed from it.
A file that it does not know counts as an average one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

PATH = Path(__file__).with_name("times.txt")
FAILURES = "inflight/failures"
# A failure counts half after so many runs without one.
_FORGET = 0.9


class Times(NamedTuple):
    first_s: float = 1.0
    thorough_s: float = 1.0

    def of_tier(self, thorough: bool) -> float:
        return self.thorough_s if thorough else self.first_s


def read_times(path: Path = PATH) -> dict[str, Times]:
    if not path.exists():
        return {}
    rows = (line.split() for line in path.read_text().splitlines())
    return {file: Times(float(first), float(thorough)) for first, thorough, file in rows}


def write_times(seconds: Mapping[str, float], *, thorough: bool, path: Path = PATH) -> None:
    """Replace what is known of these files in one tier; files that are gone are forgotten."""
    known = read_times(path)
    for file, took_s in seconds.items():
        before = known.get(file, Times(took_s, took_s))
        known[file] = before._replace(**{"thorough_s" if thorough else "first_s": took_s})
    root = path.parent.parent
    rows = (
        f"{times.first_s:8.2f} {times.thorough_s:8.2f} {file}\n"
        for file, times in sorted(known.items())
        if (root / file).exists()
    )
    path.write_text("".join(rows))


class Recording:
    """Sums what the tests of each file took, and writes it when all have passed."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._took_s: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._took_s[file_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.OK:
            write_times(self._took_s, thorough=self._config.getoption("--thorough"))


class Failures:
    """Keeps in pytest's cache how often each file failed lately: these files run first."""

    def __init__(self, config: pytest.Config) -> None:
        self._cache: pytest.Cache | None = getattr(config, "cache", None)  # -p no:cacheprovider
        self.of: dict[str, float] = {} if self._cache is None else self._cache.get(FAILURES, {})
        self._failed: set[str] = set()
        self._ran: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._ran.add(file := file_of(report.nodeid))
        if report.failed:
            self._failed.add(file)

    def pytest_sessionfinish(self) -> None:
        if self._cache is None:
            return
        now = {file: _FORGET * count if file in self._ran else count for file, count in self.of.items()}
        for file in self._failed:
            now[file] = now.get(file, 0.0) + 1.0
        self._cache.set(FAILURES, {file: count for file, count in now.items() if count > 0.1})


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]
