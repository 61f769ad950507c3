"""Calls whose arguments are text between tags, as Qwen3-Coder writes them, typed by the tool's schema."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

Schemas = Mapping[str, Mapping[str, Any]]  # of the arguments, by the tool's name
FUNCTION, PARAMETER = "<function=", "<parameter="
# A name ends where the next tag begins: else a text of nothing but beginnings takes the square of its length.
_function = re.compile(r"<function=([^<>\n]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_parameter = re.compile(r"<parameter=([^<>\n]+)>(.*?)(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)
_PYTHONS = {"True": "true", "False": "false", "None": "null"}
_KINDS = {str: "string", bool: "boolean", float: "number", list: "array", dict: "object", type(None): "null"}
# Into a schema that may refer to itself: for one argument, and for all arguments of an answer's calls.
_MOST_STEPS = 64
_MOST_STEPS_IN_ALL = 2_000
_LONGEST_REFERENCE = 1_000  # characters


def read_xml_calls(text: str, schemas: Schemas) -> list[tuple[str, dict[str, Any]]]:
    """Names and arguments; raises ValueError where there are none."""
    calls = []
    steps = _Steps(_MOST_STEPS_IN_ALL)
    for found in _function.finditer(text):
        name = found[1].strip()
        schema = schemas.get(name, {})
        given = {key.strip(): value for key, value in _parameter.findall(found[2])}
        if found[2].strip() and not given:
            raise ValueError("its arguments are not enclosed in tags")
        kinds = {key: _kinds_of(key, schema, steps) for key in given}
        calls.append((name, {key: _typed(value, kinds[key]) for key, value in given.items()}))
    if not calls:
        raise ValueError("no call")
    return calls


class _Steps:
    """What is left of the work that one answer's calls may take; where it is used up, arguments are text."""

    def __init__(self, left: int) -> None:
        self.left = left

    def taken(self, count: int) -> bool:
        self.left -= count
        return self.left >= 0


def _kinds_of(key: str, schema: Mapping[str, Any], steps: _Steps) -> frozenset[str]:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return frozenset()
    return frozenset(_kinds(properties.get(key), schema, steps))


def _typed(written: str, kinds: frozenset[str]) -> Any:
    """A text, unless the schema has something else for it; blank lines at the tags are not the value's."""
    text = written.removeprefix("\n").removesuffix("\n")
    if kinds <= {"string"}:
        return text
    word = text.strip()
    try:
        value = msgspec.json.decode(_PYTHONS.get(word, word))
    except (msgspec.DecodeError, RecursionError):
        return text
    if "string" not in kinds:
        return value
    own = {"integer", "number"} if type(value) is int else {_KINDS[type(value)]}
    return value if own & kinds else text


def _kinds(schema: Any, root: Mapping[str, Any], steps: _Steps) -> Iterator[str]:
    """The types of JSON that a schema names, itself or by others that it refers to."""
    waiting = [schema]
    for _ in range(_MOST_STEPS):
        if not waiting or not steps.taken(1):
            return
        part = waiting.pop()
        if not isinstance(part, Mapping):
            continue
        kind = part.get("type")
        kinds = kind[:_MOST_STEPS] if isinstance(kind, list) else [kind]
        yield from (each for each in kinds if isinstance(each, str))
        for name in ("anyOf", "oneOf", "allOf"):
            if isinstance(others := part.get(name), list):
                waiting += others[:_MOST_STEPS]
        if isinstance(reference := part.get("$ref"), str):
            waiting.append(_referred(reference, root, steps))


def _referred(reference: str, root: Mapping[str, Any], steps: _Steps) -> Any:
    found: Any = root if len(reference) <= _LONGEST_REFERENCE else None
    for step in reference[:_LONGEST_REFERENCE].removeprefix("#").strip("/").split("/"):
        if not isinstance(found, Mapping) or not steps.taken(1):
            return None
        found = found.get(step)
    return found
