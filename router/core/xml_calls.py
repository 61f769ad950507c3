"""Calls whose arguments are text between tags, as Qwen3-Coder writes them, typed by the tool's schema."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

Schemas = Mapping[str, Mapping[str, Any]]  # of the arguments, by the tool's name
FUNCTION, PARAMETER = "<function=", "<parameter="
_function = re.compile(r"<function=([^>\n]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_parameter = re.compile(r"<parameter=([^>\n]+)>(.*?)(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)
_PYTHONS = {"True": "true", "False": "false", "None": "null"}
_KINDS = {str: "string", bool: "boolean", float: "number", list: "array", dict: "object", type(None): "null"}
_MOST_STEPS = 64  # into a schema that may refer to itself


def read_xml_calls(text: str, schemas: Schemas) -> list[tuple[str, dict[str, Any]]]:
    """Names and arguments; raises ValueError where there are none."""
    calls = []
    for found in _function.finditer(text):
        name = found[1].strip()
        schema = schemas.get(name, {})
        given = {key.strip(): value for key, value in _parameter.findall(found[2])}
        if found[2].strip() and not given:
            raise ValueError("its arguments are not enclosed in tags")
        kinds = {key: _kinds_of(key, schema) for key in given}
        calls.append((name, {key: _typed(value, kinds[key]) for key, value in given.items()}))
    if not calls:
        raise ValueError("no call")
    return calls


def _kinds_of(key: str, schema: Mapping[str, Any]) -> frozenset[str]:
    properties = schema.get("properties")
    return frozenset(_kinds(properties.get(key), schema)) if isinstance(properties, Mapping) else frozenset()


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


def _kinds(schema: Any, root: Mapping[str, Any]) -> Iterator[str]:
    """The types of JSON that a schema names, itself or by others that it refers to."""
    waiting = [schema]
    for _ in range(_MOST_STEPS):
        if not waiting:
            return
        part = waiting.pop()
        if not isinstance(part, Mapping):
            continue
        kind = part.get("type")
        yield from [kind] if isinstance(kind, str) else filter(lambda each: isinstance(each, str), kind or ())
        for name in ("anyOf", "oneOf", "allOf"):
            waiting += part.get(name) or ()
        if isinstance(reference := part.get("$ref"), str):
            waiting.append(_referred(reference, root))


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found
