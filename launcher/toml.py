"""Writes the kinds of TOML values a settings file holds; the standard library only reads TOML."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(document: Mapping[str, Any]) -> str:
    """Top-level keys one to a line; tables inline; a list of tables as [[name]] blocks at the end."""
    plain = {key: value for key, value in document.items() if not is_list_of_tables(value)}
    lines = [f"{toml_key(key)} = {toml_value(value)}" for key, value in plain.items()]
    for name in document.keys() - plain.keys():
        for table in document[name]:
            lines += ["", f"[[{toml_key(name)}]]"]
            lines += [f"{toml_key(key)} = {toml_value(value)}" for key, value in table.items()]
    return "\n".join(lines) + "\n"


def is_list_of_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def toml_key(key: str) -> str:
    return key if BARE_KEY.fullmatch(key) else toml_value(key)


def toml_value(value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{toml_key(key)} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {pairs} }}"
    if isinstance(value, list):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        # JSON's escapes are TOML's too, except that TOML wants DEL escaped and no surrogate pairs.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value.isoformat())  # a date or time, which tomllib reads into datetime objects
