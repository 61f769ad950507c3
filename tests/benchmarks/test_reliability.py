"""The page of cases gets what the runs have left, and keeps what was not run."""

from __future__ import annotations

from typing import Any

from benchmarks.reliability import PAGE, written

ROWS = """
<!-- runs -->
old
<!-- end of runs -->
| 1 | load | holds | `tests/a.py::test_one` | met |
| 2 | kill | holds | `tests/a.py::test_two`, `inflight chaos --faults kill-triton` | old, [page](page.md) |
| 3 | other | holds | `make bench` | 3.0 s |
| 4 | short | holds | `tests/a.py::test_met` | 0 of 9 |
"""
FAULT = {"times": 2, "requests": 42, "whole": 40, "refused": 2, "cut": 0, "longest_silence_s": 0.5}
RUN: dict[str, Any] = {
    **dict.fromkeys(("times", "requests", "whole", "cut", "refused", "violations"), 1),
    "command": "inflight chaos --report /tmp/chaos.html",
    "longest_rest_s": 2.0,
    "longest_silence_s": 1.5,
    "faults": {"kill-triton": FAULT},
}


def test_figures_replace_the_last_column_and_links_stay() -> None:
    tests = {"tests/a.py::test_one": {"figure": "50 of 50"}, "tests/a.py::test_two": {"figure": "8 of 8"}}
    page = written(ROWS, {**tests, "tests/a.py::test_met": {"figure": "met"}}, [RUN, RUN])
    assert "| `tests/a.py::test_one` | 50 of 50 |" in page
    told = "`kill-triton` 4 times: all 80 answers whole, longest silence 0.5 s"
    assert f"| 8 of 8; {told}; [page](page.md) |" in page
    assert "| `make bench` | 3.0 s |" in page
    assert "| `tests/a.py::test_met` | 0 of 9 |" in page, "that it is met is no news"
    assert page.count("| `inflight chaos` | 1 | 1 |") == 2
    assert "\nold\n" not in page


def test_without_runs_the_page_is_as_it_was() -> None:
    assert written(ROWS, {}, []) == ROWS
    assert written(PAGE.read_text(), {}, []) == PAGE.read_text()
