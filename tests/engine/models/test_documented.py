"""docs/models.md names what the engine reads, and nothing else."""

from __future__ import annotations

from python_backend.engine.models.documented import PAGE, with_tables


def test_the_page_has_the_families_and_formats_that_are_declared() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_tables(page) == page, "python -m python_backend.engine.models.documented writes it anew"
