"""The page that says which test keeps which promise names tests that there are, and faults that there are."""

from __future__ import annotations

import re
from pathlib import Path

from loadtest.chaos.plan import CATALOGUE

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reliability.md").read_text()
ROWS = re.findall(r"^\| (\d+) \|(.*)\|$", PAGE.partition("## Cases")[2], re.MULTILINE)


def test_all_cases_are_there_in_order_each_with_a_test_or_a_command() -> None:
    assert [int(number) for number, _ in ROWS] == list(range(1, 49))
    for number, row in ROWS:
        tested_by = row.split("|")[2]
        assert "::test_" in tested_by or "`make bench" in tested_by or "`inflight chaos" in tested_by, number


def test_every_test_on_the_page_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", PAGE)
    assert len(named) >= 45
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not re.search(rf"^(?:async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE)
    ]
    assert not missing


def test_every_fault_on_the_page_exists_and_every_row_of_figures_names_real_ones() -> None:
    kinds = "kill|freeze|drop|delay|full|skew|broken"
    named = set(re.findall(rf"`((?:{kinds})-\w+)`", PAGE))
    assert named
    assert named <= CATALOGUE.keys()
