"""Tools: how a model is told of them, and how its calls are found in what it writes.

A model whose chat template knows tools is told of them by it. Any other gets them in the system message, in
the form that most open models were trained on: calls as JSON between <tool_call> tags.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import msgspec

from python_backend.wire.errors import ErrorKind, InflightError
from router.stop_text import tail_length

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.api.bodies import ChatBody, Tool

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_INTRODUCTION = """# Tools

You may call one or more functions to help with the user's question. They are, as JSON, one a line:
<tools>
{tools}
</tools>

For each call write its name and arguments as JSON between <tool_call> tags, and nothing else:
<tool_call>
{{"name": <function name>, "arguments": <arguments as JSON>}}
</tool_call>"""


class ToolCall(msgspec.Struct, frozen=True):
    """`arguments` is JSON, as the model wrote it."""

    id: str
    name: str
    arguments: str

    def rendered(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


def offered(body: ChatBody) -> list[Tool]:
    """The tools that the model is to be told of."""
    return [] if body.tool_choice == "none" else list(body.tools or ())


def described(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """As chat templates take them."""
    return [msgspec.to_builtins(tool) for tool in tools]


def introduction(tools: Sequence[Tool]) -> str:
    """For the system message, where the template knows no tools."""
    lines = (msgspec.json.encode(tool).decode() for tool in described(tools))
    return _INTRODUCTION.format(tools="\n".join(lines))


def written_call(name: str, arguments: Any) -> str:
    """A call as the model wrote it, for the history."""
    call = msgspec.json.encode({"name": name, "arguments": arguments}).decode()
    return f"{_OPEN}\n{call}\n{_CLOSE}"


def forces_call(body: ChatBody) -> bool:
    return body.tool_choice not in (None, "auto", "none")


def forced_schema(body: ChatBody) -> dict[str, Any] | None:
    """What the answer must be where a call is demanded; None where the model may choose."""
    tools, choice = body.tools or [], body.tool_choice
    if choice is None or not forces_call(body):
        return None
    if not isinstance(choice, str):
        tools = [tool for tool in tools if tool.function.name == choice.function.name]
        if not tools:
            message = f"tool_choice: {choice.function.name} is not among the tools"
            raise InflightError(ErrorKind.INVALID_REQUEST, message, "tool_choice")
    if not tools:
        raise InflightError(ErrorKind.INVALID_REQUEST, "tool_choice: there are no tools", "tool_choice")
    calls = [_call_schema(tool) for tool in tools]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def _call_schema(tool: Tool) -> dict[str, Any]:
    arguments = tool.function.parameters or {"type": "object"}
    return {
        "type": "object",
        "properties": {"name": {"const": tool.function.name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


class ToolReader:
    """Takes calls out of text as it streams; what cannot be part of one leaves at once.

    With `is_forced` the whole answer is one call. What looks like a call and is none, or names an unknown
    tool, is text.
    """

    def __init__(self, names: Sequence[str], is_forced: bool = False, at_most: int | None = None) -> None:
        self.calls: list[ToolCall] = []
        self._names = frozenset(names)
        self._is_forced = is_forced
        self._at_most = at_most
        self._held = ""

    @property
    def held(self) -> int:
        """How many of the last characters may still be part of a call."""
        return len(self._held)

    def feed(self, chunk: str) -> str:
        """Returns the text that may leave now; whole calls are in `calls` from then on."""
        self._held += chunk
        if self._is_forced:
            return ""
        out = []
        while (start := self._held.find(_OPEN)) >= 0:
            end = self._held.find(_CLOSE, start)
            if end < 0:
                out.append(self._held[:start])
                self._held = self._held[start:]
                return "".join(out)
            out.append(self._held[:start])
            out.append(self._take(self._held[start : end + len(_CLOSE)]))
            self._held = self._held[end + len(_CLOSE) :]
        keep = tail_length(self._held, (_OPEN,))
        out.append(self._held[: len(self._held) - keep])
        self._held = self._held[len(self._held) - keep :]
        return "".join(out)

    def flush(self) -> str:
        """What is left when no more text can come."""
        held, self._held = self._held, ""
        if not self._is_forced and not held.startswith(_OPEN):
            return held
        # A call may lack its closing tag where the model ended right behind the JSON.
        return self._take(held)

    def _take(self, written: str) -> str:
        """Adds a call; returns it as text where it is none."""
        if self._at_most is not None and len(self.calls) >= self._at_most:
            return ""
        call = _read(written.removeprefix(_OPEN).removesuffix(_CLOSE), self._names)
        if call is None:
            return written
        self.calls.append(call)
        return ""


def _read(text: str, names: frozenset[str]) -> ToolCall | None:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    if not isinstance(value, dict) or value.get("name") not in names:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    written = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    return ToolCall(f"call_{secrets.token_hex(12)}", value["name"], written)
