"""Arguments that were written as text, and what a tool's schema makes of them."""

from __future__ import annotations

from typing import Any

import pytest

from router.core.xml_calls import read_xml_calls

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": ["number", "null"]},
        "deep": {"$ref": "#/$defs/Deep"},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "loop": {"$ref": "#/properties/loop"},
        "odd": 3,
    },
    "$defs": {"Deep": {"type": "object"}},
}


def argument(name: str, written: str) -> Any:
    text = f"<function=edit>\n<parameter={name}>\n{written}\n</parameter>\n</function>"
    [(_, arguments)] = read_xml_calls(text, {"edit": SCHEMA})
    return arguments[name]


@pytest.mark.parametrize(
    ("name", "written", "expected"),
    [
        ("path", "a.py", "a.py"),
        ("path", "12", "12"),
        ("path", "\n  two\nlines <b>\n", "\n  two\nlines <b>\n"),
        ("count", "12", 12),
        ("count", " 12 ", 12),
        ("count", "many", "many"),
        ("ratio", "0.5", 0.5),
        ("ratio", "None", None),
        ("deep", '{"a": [true]}', {"a": [True]}),
        ("deep", "{'a'", "{'a'"),
        ("either", "7", 7),
        ("either", "[1]", "[1]"),
        ("either", "seven", "seven"),
        ("loop", "1", "1"),
        ("odd", "1", "1"),
        ("unknown", "True", "True"),
    ],
)
def test_an_argument_has_the_type_of_its_schema(name: str, written: str, expected: Any) -> None:
    assert argument(name, written) == expected


def test_an_argument_without_its_end_goes_up_to_the_next() -> None:
    text = "<function=edit><parameter=path>a\n<parameter=count>1</function>"
    assert read_xml_calls(text, {"edit": SCHEMA}) == [("edit", {"path": "a", "count": 1})]
