"""The documented table of what runtimes can do is what they declare."""

from __future__ import annotations

from python_backend.engine.runtimes.capability_table import PAGE, with_table
from python_backend.engine.runtimes.declared import AUTO, BY_NAME
from python_backend.wire.parameters import RUNTIMES


def test_the_documented_table_is_what_the_runtimes_declare() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page) == page


def test_every_runtime_that_can_be_named_is_declared() -> None:
    assert sorted(BY_NAME) == sorted(set(RUNTIMES) - {"auto"})
    assert [each.name for each in AUTO] == ["engine", "vllm", "llm"]
