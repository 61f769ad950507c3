"""How long each test file took when that was last recorded, and which files failed lately on this machine.

`pytest --record` writes tests/times.txt: a line a file, with its seconds in `make test` and in
`make test-thorough`. The order of tests, the slices of CI and the time that is left are computed from it.
A file that it does not know counts as an average one.
"""

from __future__ import annotations

import os
import platform
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from tests.change import commit, is_changed

PATH = Path(__file__).with_name("times.txt")
LAST_RUN = Path(__file__).with_name("last_thorough_run.txt")
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
    """Writes what a run of all tests took, file by file, and how the last run of the thorough tier ended."""

    def __init__(self, *, thorough: bool) -> None:
        self._thorough = thorough
        self._began_s = time.monotonic()
        self._took_s: dict[str, float] = defaultdict(float)
        self._outcomes: Counter[str] = Counter()
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._took_s[file_of(report.nodeid)] += report.duration
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.skipped or report.when == "call":
            self._outcomes[report.outcome] += 1

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return
        write_times(self._took_s, thorough=self._thorough)
        if self._thorough:
            LAST_RUN.write_text(self._told())

    def _told(self) -> str:
        minutes = (time.monotonic() - self._began_s) / 60
        ended = datetime.now(timezone.utc)
        counts = self._outcomes | {"failed": len(self._failed)}
        return "".join(
            f"{line}\n"
            for line in (
                "The last run of `make test-thorough`, written by itself.",
                "",
                f"commit   {commit()}{' and what was changed since' if is_changed() else ''}",
                f"ended    {ended:%Y-%m-%d %H:%M} UTC, after {minutes:.0f} minutes",
                f"machine  {os.cpu_count()} cores, {platform.machine()}, {processor()}, "
                f"{psutil.virtual_memory().total / 2**30:.0f} GiB, Python {platform.python_version()}",
                f"result   {', '.join(f'{count} {what}' for what, count in sorted(counts.items()))}",
                *(f"failed   {nodeid}" for nodeid in sorted(self._failed)),
            )
        )


def processor() -> str:
    """Return the name that the processor gives itself."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return next((line.partition(":")[2].strip() for line in info.splitlines() if "model name" in line), "")


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
