"""Tools of a response: flat functions for the model, whatever they are to the client.

Tools that OpenAI runs itself are left out: there are none here, and a client that offers them works without.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from python_backend.wire.errors import ErrorKind, InflightError
from router.chat.tool_bodies import (
    AllowedTools,
    CustomFormat,
    CustomTool,
    Grammar,
    Named,
    NamedTool,
    Tool,
    ToolChoice,
    ToolFunction,
)
from router.content.conversations.items import flat_name
from router.core.messages import Name
from router.request.decoding import invalid

_CALLED_HERE = ("function", "custom")
_HOSTED = (
    "apply_patch",
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "programmatic_tool_calling",
    "shell",
    "tool_search",
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
)


class InputFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


class OfferedTool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A function, a custom tool, a namespace of such, or one that OpenAI runs."""

    type: str
    name: Name | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: InputFormat | None = None
    tools: list[OfferedTool] | None = None


class AllowedName(msgspec.Struct, frozen=True):
    type: str
    name: Name | None = None


class ChosenTool(msgspec.Struct, frozen=True, omit_defaults=True):
    type: str
    name: Name | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[AllowedName] | None = None


ResponseToolChoice = Literal["none", "auto", "required"] | ChosenTool


def check_response_tools(tools: Sequence[OfferedTool] | None, choice: ResponseToolChoice | None) -> None:
    for index, tool in enumerate(tools or ()):
        _check_tool(tool, f"tools[{index}]")
    if not isinstance(choice, ChosenTool):
        return
    if choice.type == "allowed_tools":
        if choice.mode is None or choice.tools is None:
            raise invalid("tool_choice: allowed_tools needs mode and tools", "tool_choice")
    elif choice.type not in _CALLED_HERE or choice.name is None:
        allowed = "none, auto, required, allowed_tools, or a function or custom tool by name"
        raise InflightError(ErrorKind.UNSUPPORTED, f"tool_choice: expected {allowed}", "tool_choice")


def _check_tool(tool: OfferedTool, where: str) -> None:
    if tool.type in _HOSTED:
        return
    if tool.type not in (*_CALLED_HERE, "namespace"):
        text = f"{where}.type: allowed are function, custom and namespace, and OpenAI's hosted tools"
        raise InflightError(ErrorKind.UNSUPPORTED, text, f"{where}.type")
    if tool.name is None:
        raise invalid(f"Missing required parameter: {where}.name", f"{where}.name")
    form = tool.format
    if form is not None and form.type == "grammar" and (form.syntax is None or form.definition is None):
        raise invalid(f"{where}.format: a grammar needs a syntax and a definition", f"{where}.format")
    for index, each in enumerate(tool.tools or ()):
        _check_tool(each, f"{where}.tools[{index}]")


def _called(tools: Sequence[OfferedTool], namespace: str | None = None) -> Iterator[tuple[str, OfferedTool]]:
    """What a model may call, by its flat name."""
    for tool in tools:
        if tool.type == "namespace":
            yield from _called(tool.tools or (), flat_name(namespace, tool.name or ""))
        elif tool.type in _CALLED_HERE:
            yield flat_name(namespace, tool.name or ""), tool


def chat_tools(tools: Sequence[OfferedTool]) -> list[Tool]:
    return [_chat_tool(name, tool) for name, tool in _called(tools)]


def _chat_tool(name: str, tool: OfferedTool) -> Tool:
    if tool.type == "function":
        return Tool(ToolFunction(name, tool.description, tool.parameters, tool.strict))
    form = tool.format
    if form is None or form.syntax is None or form.definition is None:
        return Tool(type="custom", custom=CustomTool(name, tool.description))
    grammar = CustomFormat("grammar", Grammar(form.syntax, form.definition))
    return Tool(type="custom", custom=CustomTool(name, tool.description, grammar))


def namespaces(tools: Sequence[OfferedTool]) -> dict[str, tuple[str, str]]:
    """Namespace and name of each tool that has one, by its flat name."""
    found = {}
    for space in tools:
        if space.type == "namespace":
            for name, tool in _called(space.tools or (), space.name):
                found[name] = (space.name or "", tool.name or "")
    return found


def chat_choice(choice: ResponseToolChoice | None) -> ToolChoice | None:
    if not isinstance(choice, ChosenTool):
        return choice
    if choice.type != "allowed_tools":
        return _named(choice.type, choice.name)
    # Tools that are not here are not among those that may be called.
    names = [_named(each.type, each.name) for each in choice.tools or () if each.type in _CALLED_HERE]
    return NamedTool(type="allowed_tools", allowed_tools=AllowedTools(choice.mode or "auto", names))


def _named(kind: str, name: str | None) -> NamedTool:
    named = Named(name or "")
    return NamedTool(type="custom", custom=named) if kind == "custom" else NamedTool(named)
