"""Tools in request bodies: functions, custom tools, and which of them are to be called."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from router.core.answer_reader import CUSTOM_INPUT
from router.core.messages import Name
from router.request.decoding import invalid

# The arguments of a function that says nothing of them.
NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


class ToolFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Grammar(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    syntax: Literal["lark", "regex"]
    definition: str


class CustomFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["text", "grammar"]
    grammar: Grammar | None = None


class CustomTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One that takes a text, not arguments; a grammar holds for it where the tool is forced."""

    name: Name
    description: str | None = None
    format: CustomFormat | None = None

    @property
    def grammar(self) -> Grammar | None:
        return None if self.format is None else self.format.grammar

    def as_function(self) -> ToolFunction:
        text: dict[str, Any] = {"type": "string"}
        description, grammar = self.description or "", self.grammar
        if grammar is not None:
            description += f"\n\nThe input follows this {grammar.syntax} grammar:\n{grammar.definition}"
        schema = {
            "type": "object",
            "properties": {CUSTOM_INPUT: text},
            "required": [CUSTOM_INPUT],
            "additionalProperties": False,
        }
        return ToolFunction(self.name, description.strip() or None, schema)


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    function: ToolFunction | None = None
    type: Literal["function", "custom"] = "function"
    custom: CustomTool | None = None

    @property
    def as_function(self) -> ToolFunction:
        """As a model is told of it."""
        if self.custom is not None:
            return self.custom.as_function()
        assert self.function is not None  # `check_tools` has seen to it
        return self.function

    @property
    def name(self) -> str:
        return self.as_function.name if self.custom is None else self.custom.name


class Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name


class NamedTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tool, or with `allowed_tools` some of them."""

    function: Named | None = None
    type: Literal["function", "custom", "allowed_tools"] = "function"
    custom: Named | None = None
    allowed_tools: AllowedTools | None = None

    @property
    def name(self) -> str | None:
        named = self.function or self.custom
        return None if named is None else named.name


class AllowedTools(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mode: Literal["auto", "required"]
    tools: list[NamedTool]


ToolChoice = Literal["none", "auto", "required"] | NamedTool


def check_tools(tools: list[Tool] | None, choice: ToolChoice | None) -> None:
    """What a type promises is there, and nothing else."""
    for index, tool in enumerate(tools or ()):
        where = f"tools[{index}]"
        _check_kind(tool, ("function", "custom"), where)
        form = None if tool.custom is None else tool.custom.format
        if form is not None and (form.type == "grammar") != (form.grammar is not None):
            place = f"{where}.custom.format"
            raise invalid(f"{place}: grammar is only allowed with type grammar", place)
    if isinstance(choice, NamedTool):
        _check_kind(choice, ("function", "custom", "allowed_tools"), "tool_choice")


def _check_kind(struct: Tool | NamedTool, kinds: tuple[str, ...], where: str) -> None:
    for kind in kinds:
        is_there = getattr(struct, kind) is not None
        if kind == struct.type and not is_there:
            raise invalid(f"Missing required parameter: {where}.{kind}", f"{where}.{kind}")
        if kind != struct.type and is_there:
            raise invalid(
                f"{where}.{kind}: only allowed with type {kind}, not {struct.type}", f"{where}.{kind}"
            )
