"""A call of a tool that a model has written."""

from __future__ import annotations

from typing import Any

import msgspec


class ToolCall(msgspec.Struct, frozen=True):
    """`arguments` is JSON, as the model wrote it."""

    id: str
    name: str
    arguments: str

    @property
    def read_out(self) -> str:
        """All that somebody reads who takes it apart: what is escaped in JSON is written out too."""
        return " | ".join((self.name, self.arguments, *_strings(self.arguments)))

    def rendered(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


def _strings(encoded: str) -> list[str]:
    """Names and texts anywhere in JSON; none where it is not JSON."""
    found: list[str] = []
    try:
        open_parts: list[Any] = [msgspec.json.decode(encoded)]
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return found
    while open_parts:
        part = open_parts.pop()
        if isinstance(part, str):
            found.append(part)
        elif isinstance(part, dict):
            open_parts += [*part, *part.values()]
        elif isinstance(part, list):
            open_parts += part
    return found
