"""For a second run of failed tests, alone: names the flaky ones among them, and never passes."""

from __future__ import annotations

import pytest
from _pytest.terminal import TerminalReporter


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.testscollected and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    failed = _nodeids(terminalreporter, "failed", "error")
    flaky = [nodeid for nodeid in _nodeids(terminalreporter, "passed") if nodeid not in failed]
    terminalreporter.section("second run")
    for nodeid in failed:
        terminalreporter.line(f"failed: {nodeid} (twice)")
    for nodeid in flaky:
        terminalreporter.line(f"flaky: {nodeid} (failed, then passed alone)")
    terminalreporter.line(f"{len(failed)} failed twice, {len(flaky)} flaky")


def _nodeids(reporter: TerminalReporter, *categories: str) -> list[str]:
    reports = [report for each in categories for report in reporter.stats.get(each, ())]
    return list(dict.fromkeys(report.nodeid for report in reports))
