from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.documented_tables import markdown, write_between_marks

PAGE = "# Title\n\n<!-- speeds: begin -->\nold\n<!-- speeds: end -->\n\nThe rest.\n"


def test_a_table_takes_the_place_of_the_last_one_and_nothing_else_changes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    write_between_marks(page, "speeds", markdown(("what", "speed"), [("one", "2"), ("two", "3")]))
    table = "| what | speed |\n| --- | --- |\n| one | 2 |\n| two | 3 |"
    assert page.read_text() == PAGE.replace("old", table)


def test_a_page_without_a_place_for_it_is_left_alone_and_the_marks_are_named(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    with pytest.raises(ValueError, match="<!-- sizes: begin -->"):
        write_between_marks(page, "sizes", "x")
    assert page.read_text() == PAGE
