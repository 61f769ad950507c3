"""Tools: how a model is told of them, of calls that were made and of results, and which it must call.

A model whose chat template knows tools is told of them by it. Any other gets them in the system message, in
the form that most open models were trained on: calls as JSON between <tool_call> tags.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from router.chat.tool_bodies import NO_ARGUMENTS, Grammar, NamedTool, Tool
from router.core.answer_reader import (
    CUSTOM_INPUT,
    AnswerReader,
    CallList,
    ThoughtReader,
    ToolReader,
    WholeCall,
)
from router.core.bounded_json import TooMuchJson, decode_text
from router.core.call_formats import HERMES, CallFormat, written_call
from router.core.harmony import HarmonyReader
from router.request.decoding import invalid

if TYPE_CHECKING:
    from router.chat.bodies import ChatBody
    from router.core.messages import MadeCall

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
    return [] if body.tool_choice == "none" else [tool for _, tool in _callable(body)]


def described(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """As chat templates take them."""
    return [{"function": msgspec.to_builtins(tool.as_function), "type": "function"} for tool in tools]


def introduction(tools: Sequence[Tool]) -> str:
    """For the system message, where the template knows no tools."""
    lines = (msgspec.json.encode(tool).decode() for tool in described(tools))
    return _INTRODUCTION.format(tools="\n".join(lines))


def forced(body: ChatBody) -> bool:
    """Whether the answer must be a call."""
    choice = body.tool_choice
    if isinstance(choice, NamedTool) and choice.allowed_tools is not None:
        return choice.allowed_tools.mode == "required"
    return choice not in (None, "auto", "none")


def _callable(body: ChatBody) -> list[tuple[int, Tool]]:
    """The tools that may be called, each with its place in the body."""
    tools, choice = list(enumerate(body.tools or ())), body.tool_choice
    if not isinstance(choice, NamedTool) or choice.allowed_tools is None:
        return tools
    allowed = [each.name for each in choice.allowed_tools.tools]
    _check_known(allowed, tools)
    return [(index, tool) for index, tool in tools if tool.name in allowed]


def _check_known(names: Sequence[str | None], tools: Sequence[tuple[int, Tool]]) -> None:
    known = {tool.name for _, tool in tools}
    for name in names:
        if name not in known:
            raise invalid(f"tool_choice: {name} is not among the tools", "tool_choice")


def _demanded(body: ChatBody) -> list[tuple[int, Tool]]:
    """Those of which one must be called."""
    tools, choice = _callable(body), body.tool_choice
    if isinstance(choice, NamedTool) and choice.name is not None:
        _check_known([choice.name], tools)
        tools = [each for each in tools if each[1].name == choice.name]
    if not tools:
        raise invalid("tool_choice: there are no tools", "tool_choice")
    return tools


def forced_grammar(body: ChatBody) -> Grammar | None:
    """What a demanded custom tool takes, where it says so."""
    demanded = _demanded(body)
    _, tool = demanded[0]
    return None if len(demanded) > 1 or tool.custom is None else tool.custom.grammar


def forced_schema(body: ChatBody) -> dict[str, Any] | None:
    """What the answer must be where a call is demanded; None where the model may choose."""
    if not forced(body):
        return None
    tools = _demanded(body)
    if len(tools) == 1:
        return _call_schema(tools[0][1], "#")
    return {"anyOf": [_call_schema(tool, f"#/anyOf/{number}") for number, (_, tool) in enumerate(tools)]}


def forced_field(body: ChatBody) -> str:
    """Where the caller wrote what a demanded call must be."""
    demanded = _demanded(body)
    index, tool = demanded[0]
    if len(demanded) > 1:
        return "tools"
    return f"tools[{index}].function.parameters" if tool.custom is None else f"tools[{index}].custom.format"


def _call_schema(tool: Tool, place: str) -> dict[str, Any]:
    """`place` is where in the whole schema this one will be."""
    function = tool.as_function
    arguments = NO_ARGUMENTS if function.parameters is None else function.parameters or {"type": "object"}
    return {
        "type": "object",
        "properties": {
            "name": {"const": function.name},
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


def reader_for(
    body: ChatBody, form: CallFormat = HERMES, thinks: bool | None = None
) -> Callable[[], AnswerReader] | None:
    """What finds thoughts and calls in an answer, a new one for each; None where there can be neither.

    `thinks` is whether the prompt ends within a thought; None where the model does not think.
    """
    new_tools = _tool_reader(body, form)
    if new_tools is None and thinks is None:
        return None

    def new_reader() -> AnswerReader:
        thoughts = None if thinks is None else ThoughtReader(thinks)
        return AnswerReader(thoughts, None if new_tools is None else new_tools())

    return new_reader


def harmony_reader_for(body: ChatBody) -> Callable[[], HarmonyReader]:
    """The same for a model that thinks, speaks and calls in channels."""
    new_list = _call_lists(body, offered(body))
    return lambda: HarmonyReader(new_list())


def _tool_reader(body: ChatBody, form: CallFormat) -> Callable[[], ToolReader | WholeCall] | None:
    tools = offered(body)
    if not tools:
        return None
    is_forced = forced(body)
    if is_forced and forced_grammar(body) is not None:
        [(_, only)] = _demanded(body)
        return lambda: WholeCall(only.name)
    new_list = _call_lists(body, tools)
    return lambda: ToolReader(new_list(), is_forced, form)


def _call_lists(body: ChatBody, tools: Sequence[Tool]) -> Callable[[], CallList]:
    names = [tool.name for tool in tools]
    custom = [tool.name for tool in tools if tool.custom is not None]
    schemas = {tool.name: tool.as_function.parameters or {} for tool in tools}
    at_most = 1 if body.parallel_tool_calls is False else None
    return lambda: CallList(names, at_most, custom, schemas)


def shown_result(rendered: dict[str, Any], call_id: str | None, knows_tools: bool) -> dict[str, Any]:
    """What a tool said, as a template takes it."""
    if knows_tools:
        return {**rendered, "tool_call_id": call_id}
    return {"role": "user", "content": f"<tool_response>\n{rendered['content']}\n</tool_response>"}


def with_calls(
    rendered: dict[str, Any], calls: Sequence[MadeCall], where: str, knows_tools: bool
) -> dict[str, Any]:
    """A message with the calls that it made."""
    made = [_made(call, f"{where}.tool_calls[{number}]") for number, call in enumerate(calls)]
    if not knows_tools:
        texts = [written_call(name, arguments) for _, name, arguments in made]
        return {**rendered, "content": "\n".join(filter(None, [rendered["content"], *texts]))}
    # Templates iterate over arguments, so that they come as an object.
    return {
        **rendered,
        "tool_calls": [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call_id, name, arguments in made
        ],
    }


def _made(call: MadeCall, where: str) -> tuple[str, str, Any]:
    """Id, name and arguments, as of a function."""
    if call.type == "custom" and call.custom is not None:
        return call.id, call.custom.name, {CUSTOM_INPUT: call.custom.input}
    if call.function is None or call.type != "function":
        raise invalid(f"Missing required parameter: {where}.{call.type}", f"{where}.{call.type}")
    place, arguments = f"{where}.function.arguments", call.function.arguments
    try:
        return call.id, call.function.name, decode_text(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        raise invalid(f"{place}: expected JSON", place) from None
    except TooMuchJson as error:
        raise invalid(f"{place}: {error}", place) from None
