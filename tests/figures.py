"""`--figures FILE`: what tests measured, for pages that show it.

A test tells its figure to the fixture `figure`; one that tells none has met what it is about.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

import pytest

_MET = "met"


class FigureFile:
    """Adds to what is in the file: the tests may be run in several parts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told: dict[str, list[str]] = {}
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("[")[0]
        if report.failed:
            self._failed.add(name)
        elif report.when == "call" and report.passed:
            told = [str(value) for key, value in report.user_properties if key == "figure"]
            self._told.setdefault(name, []).extend(told)

    def pytest_sessionfinish(self) -> None:
        known = json.loads(self._path.read_text()) if self._path.exists() else {}
        when = datetime.now(timezone.utc).strftime("%Y-%m-%d")
        for name in self._told.keys() | self._failed:
            told = dict.fromkeys(self._told.get(name, ()))
            known[name] = {
                "figure": "failed" if name in self._failed else "; ".join(told) or _MET,
                "when": when,
            }
        self._path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
