"""Tools: how a model is told of them, and how its calls are found in what it writes.

A model whose chat template knows tools is told of them by it. Any other gets them in the system message, in
the form that most open models were trained on: calls as JSON between <tool_call> tags.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from router.core.answer_text import tail_length
from router.core.messages import ToolCall
from router.openai.bodies import ChatBody, Tool
from router.request.decoding import invalid

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
            raise invalid(f"tool_choice: {choice.function.name} is not among the tools", "tool_choice")
    if not tools:
        raise invalid("tool_choice: there are no tools", "tool_choice")
    if len(tools) == 1:
        return _call_schema(tools[0], "#")
    return {"anyOf": [_call_schema(tool, f"#/anyOf/{index}") for index, tool in enumerate(tools)]}


def _call_schema(tool: Tool, place: str) -> dict[str, Any]:
    """`place` is where in the whole schema this one will be."""
    arguments = tool.function.parameters or {"type": "object"}
    return {
        "type": "object",
        "properties": {
            "name": {"const": tool.function.name},
            "arguments": _moved(arguments, f"{place}/properties/arguments"),
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: dict[str, Any], place: str) -> dict[str, Any]:
    """The schema as part of a larger one: its references, which count from its own root, lead there too."""
    encoded = msgspec.json.encode(schema)
    if b'"$ref"' not in encoded:
        return schema
    moved: dict[str, Any] = msgspec.json.decode(encoded)
    open_parts: list[Any] = [moved]
    while open_parts:  # not by recursion: a schema may be nested as deeply as JSON may
        part = open_parts.pop()
        if isinstance(part, list):
            open_parts += part
        elif isinstance(part, dict):
            reference = part.get("$ref")
            if isinstance(reference, str) and reference.startswith("#"):
                part["$ref"] = place + reference[1:]
            open_parts += part.values()
    return moved


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
        self.held = 0  # how many of the last characters may still be part of a call
        self._held: list[str] = []
        self._is_open = False
        self._end = ""  # the last characters, in which a closing tag may have begun

    def feed(self, chunk: str) -> str:
        """Returns the text that may leave now; whole calls are in `calls` from then on."""
        self._held.append(chunk)
        self.held += len(chunk)
        self._end = self._end[1 - len(_CLOSE) :] + chunk
        # A long call is not looked through again with each of its chunks.
        if self._is_forced or (self._is_open and _CLOSE not in self._end):
            return ""
        text, out = "".join(self._held), []
        while (start := text.find(_OPEN)) >= 0:
            out.append(text[:start])
            end = text.find(_CLOSE, start)
            if end < 0:
                self._hold(text[start:], is_open=True)
                return "".join(out)
            out.append(self._take(text[start : end + len(_CLOSE)]))
            text = text[end + len(_CLOSE) :]
        keep = tail_length(text, (_OPEN,))
        out.append(text[: len(text) - keep])
        self._hold(text[len(text) - keep :], is_open=False)
        return "".join(out)

    def _hold(self, text: str, *, is_open: bool) -> None:
        self._held, self.held, self._is_open = [text], len(text), is_open

    def flush(self) -> str:
        """What is left when no more text can come."""
        held = "".join(self._held)
        self._hold("", is_open=False)
        if not self._is_forced and not held.startswith(_OPEN):
            return held
        # A call may lack its closing tag where the model ended right behind the JSON.
        return self._take(held)

    def drop(self, first: int) -> None:
        """Takes back the calls from this one on, before anybody was told of them."""
        del self.calls[first:]

    def _take(self, written: str) -> str:
        """Adds a call; returns it as text where it is none."""
        if self._at_most is not None and len(self.calls) >= self._at_most:
            return ""
        call = _read(written.removeprefix(_OPEN).removesuffix(_CLOSE), self._names)
        if call is None:
            return written
        self.calls.append(call)
        return ""


def reader_for(body: ChatBody) -> Callable[[], ToolReader] | None:
    """What finds calls in an answer, a new one for each; None where there can be none."""
    names = [tool.function.name for tool in offered(body)]
    if not names:
        return None
    is_forced = forces_call(body)
    at_most = 1 if body.parallel_tool_calls is False else None
    return lambda: ToolReader(names, is_forced, at_most)


class _Written(msgspec.Struct, frozen=True):
    """A call as models write it; its arguments leave as they are, not decoded and written anew."""

    name: str
    arguments: msgspec.Raw = msgspec.Raw()
    parameters: msgspec.Raw = msgspec.Raw()


_written = msgspec.json.Decoder(_Written)


def _read(text: str, names: frozenset[str]) -> ToolCall | None:
    try:
        call = _written.decode(text)
        arguments = bytes(call.arguments or call.parameters).decode().strip()
        if arguments.startswith('"'):  # some write the object as a text
            arguments = msgspec.json.decode(arguments, type=str)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    if call.name not in names:
        return None
    without = arguments in ("", "null")
    return ToolCall(f"call_{secrets.token_hex(12)}", call.name, "{}" if without else arguments)
