"""What a run of many tests tells meanwhile: failures as they happen, how far it is, and how long still."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

_LINE_EVERY_S = 15.0
_TERMINAL_EVERY_S = 0.5
# The pace of a smaller share of all work tells nothing.
_KNOWN_FROM = 0.03


class Plan(Protocol):
    """What the run is about to do; the scheduler of workers knows."""

    @property
    def tests(self) -> int: ...

    def seconds_left(self) -> float:
        """Return how long what is left took when it was recorded, all workers together."""


def share_of_time(passed_s: float, left_s: float, done_s: float) -> float:
    """Return how long a run goes on that did `done_s` of recorded time within `passed_s`."""
    return left_s * passed_s / done_s if done_s else 0.0


def as_minutes(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


class Progress:
    def __init__(self, reporter: TerminalReporter, plan: Plan) -> None:
        self._reporter = reporter
        self._plan = plan
        self._began_s = self._told_s = time.monotonic()
        self._all_s = 0.0
        self._ended = 0
        self._counts: Counter[str] = Counter()
        self._is_terminal = sys.stdout.isatty()

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Replace the letter of each test, which tells nobody anything, by nothing."""
        if getattr(report, "wasxfail", None) is not None:
            return None
        if report.when == "call" or not report.passed:
            outcome = "error" if report.failed and report.when != "call" else report.outcome
            return outcome, "", ""
        return "", "", ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._counts["failed"] += 1
            self._tell_failure(report)
        if report.skipped:
            self._counts["skipped"] += 1
        if report.when == "teardown":
            self._ended += 1
            self._tell_progress()

    def _tell_failure(self, report: pytest.TestReport) -> None:
        crash = getattr(report.longrepr, "reprcrash", None)
        where = f"{crash.path}:{crash.lineno}: {crash.message}" if crash else report.longreprtext
        lines = where.splitlines()[:12]
        self._clear()
        self._reporter.write_line(f"FAILED {report.nodeid} ({report.when})", red=True)
        for line in lines:
            self._reporter.write_line(f"    {line}")

    def _tell_progress(self) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s < (_TERMINAL_EVERY_S if self._is_terminal else _LINE_EVERY_S):
            return
        self._told_s = now_s
        left_s = self._plan.seconds_left()
        self._all_s = max(self._all_s, left_s)
        passed_s = now_s - self._began_s
        done_s = self._all_s - left_s
        is_known = done_s > _KNOWN_FROM * self._all_s
        still = (
            f"about {as_minutes(share_of_time(passed_s, left_s, done_s))} left" if is_known else "just begun"
        )
        others = "".join(f", {count} {what}" for what, count in sorted(self._counts.items()))
        done = f"{self._ended} of {self._plan.tests} tests after {as_minutes(passed_s)}"
        line = f"{done}{others}; {still}"
        if self._is_terminal:
            self._reporter.rewrite(line, erase=True)
        else:
            self._reporter.write_line(line)

    def _clear(self) -> None:
        if self._is_terminal:
            self._reporter.rewrite("", erase=True)

    def pytest_sessionfinish(self) -> None:
        self._clear()
