"""The matrix of real clients itself: what its files say, and how its table is kept."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.clients import table
from tests.clients.__main__ import outcomes_of
from tests.clients.catalogue import Client, clients, read
from tests.clients.table import HEAD, Outcome


def test_every_file_names_its_client_and_pins_its_packages() -> None:
    found = clients()
    assert len(found) >= 18
    assert len({client.name for client in found}) == len({client.title for client in found}) == len(found)
    for client in found:
        assert client.version[0].isdigit()
        assert all("@" in package[1:] for package in client.packages)


def test_a_file_without_pinned_packages_is_refused(tmp_path: Path) -> None:
    for name, text in (("a_client.py", '"""A."""\n# dependencies = ["a"]\n'), ("a_client.mjs", "// A.\n")):
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=f"{name} begins with a title and its dependencies"):
            read(tmp_path / name)


def test_the_page_has_a_row_for_known_clients_alone() -> None:
    assert table.rows_of(table.PAGE.read_text()).keys() <= {client.title for client in clients()}


def test_a_row_tells_what_works_and_why_the_rest_does_not() -> None:
    well, badly = Outcome("chat"), Outcome("tools", "Error: a | b\nc")
    assert table.row("x", "1.2", [well], "2026-01-02") == "| x | 1.2 | chat | all 1 work | 2026-01-02 |"
    found = table.row("x", "1.2", [well, badly], "2026-01-02")
    assert found == "| x | 1.2 | chat; tools | 1 of 2 work; tools: Error: a / b c | 2026-01-02 |"


def test_a_client_that_was_tried_again_has_a_new_row_and_the_others_keep_theirs() -> None:
    page = f"# Clients\n\n{HEAD}| b | 1 | u | r | d |\n| c | 1 | u | r | d |\n\n## After\n"
    found = table.replaced(page, {"a": "| a | 2 | u | r | d |", "c": "| c | 2 | u | r | d |"})
    rows = "| a | 2 | u | r | d |\n| b | 1 | u | r | d |\n| c | 2 | u | r | d |\n"
    assert found == f"# Clients\n\n{HEAD}{rows}\n## After\n"


USES = """
from tests.clients.uses import check, main, use

@use("good")
def good() -> None:
    check(True)

@use("bad")
def bad() -> None:
    check(False, "this")

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (USES, [Outcome("good"), Outcome("bad", "AssertionError: not as expected: 'this'")]),
        ("raise SystemExit(3)", [Outcome("start", "it ended with status 3")]),
    ],
)
def test_what_a_file_reports_is_what_came_of_its_uses(
    tmp_path: Path, text: str, expected: list[Outcome]
) -> None:
    path = tmp_path / "some_client.py"
    path.write_text(text)
    found = outcomes_of(Client(path, "Some", "some", "1"), {**os.environ}, [sys.executable, str(path)])
    assert found == expected
