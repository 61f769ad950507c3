"""Tells flaky tests from failed ones: CI runs the few that failed three times more, alone.

As a plugin of these runs it writes down what passed and what failed. As a program it judges: with the name
of a run, whether all that failed in it passed whenever it was alone; without one, whether at most one test of
all runs was flaky, and it names them.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ENVIRONMENT = "INFLIGHT_TESTS_AGAIN"
RUNS = 3
MOST_FLAKY = 1


class Outcomes:
    """What the tests of each run did alone: how often they passed, and whether they failed once."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, nodeid: str, passed: bool) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps([nodeid, passed]) + "\n")

    def read(self) -> dict[str, list[bool]]:
        outcomes: dict[str, list[bool]] = defaultdict(list)
        if self._path.exists():
            for line in self._path.read_text().splitlines():
                nodeid, passed = json.loads(line)
                outcomes[nodeid].append(passed)
        return outcomes


def is_flaky(outcomes: list[bool]) -> bool:
    """Return whether a test that failed among others passed each time that it was alone."""
    return len(outcomes) >= RUNS and all(outcomes)


def noted() -> Outcomes:
    return Outcomes(Path(os.environ[ENVIRONMENT]))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed or (report.when == "call" and not report.skipped):
        noted().note(report.nodeid, not report.failed)


def judge(outcomes: dict[str, list[bool]], last: bool) -> int:
    """Print what is flaky and what is wrong, and return the exit status."""
    flaky = sorted(nodeid for nodeid, each in outcomes.items() if is_flaky(each))
    wrong = sorted(outcomes.keys() - set(flaky))
    for nodeid in wrong:
        failed = outcomes[nodeid].count(False)
        print(f"failed: {nodeid} (also alone, {failed} of {len(outcomes[nodeid])} times)")
    if last:
        for nodeid in flaky:
            print(f"flaky: {nodeid} (failed once, then passed {RUNS} times alone): find its cause")
        if len(flaky) > MOST_FLAKY:
            print(f"{len(flaky)} flaky tests are more than the {MOST_FLAKY} that may pass")
            return 1
        return 0
    return 1 if wrong or not outcomes else 0


if __name__ == "__main__":
    sys.exit(judge(noted().read(), last=len(sys.argv) == 1))
