"""The body of a message to be answered, and the chat that it stands for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from python_backend.wire.errors import ErrorKind, InflightError
from router.chat.bodies import ChatBody, ResponseFormat, Schema, refuse_unsupported
from router.chat.tool_bodies import Named, NamedTool, Tool, ToolFunction
from router.core.generation import MAX_NEW_TOKENS
from router.core.messages import CalledFunction, MadeCall, Message, Part, image_part
from router.request.decoding import decode, invalid

_MAX_TOOLS = 512
_MAX_STOPS = 16
_Name = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,128}$")]
_Stop = Annotated[str, Meta(min_length=1, max_length=1000)]
_SAME = ("max_tokens", "temperature", "top_p", "top_k", "stream")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
# As much as a template may be asked for.
_EFFORTS = {"xhigh": "high", "max": "high"}
# Claude Code begins its system prompt with this, and with another number in each request: not for the model,
# and a prompt that begins anew each time has nothing in the prefix cache.
_BILLING = "x-anthropic-billing-header:"
# Values that ask for what the router does anyway; all others of these fields are refused.
NEUTRAL: dict[str, tuple[Any, ...]] = {"container": (), "mcp_servers": ([],), "speed": ("standard",)}


class ImageSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["base64", "url", "file"]
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None

    def part(self, where: str) -> Part:
        field = {"base64": "data", "url": "url", "file": "file_id"}[self.type]
        given: str | None = getattr(self, field)
        if given is None:
            raise invalid(f"{where}.{field}: expected with the type {self.type}", f"{where}.{field}")
        if self.type == "file":
            return image_part(file_id=given)
        return image_part(given if self.type == "url" else f"data:{self.media_type or ''};base64,{given}")


class Block(msgspec.Struct, frozen=True):
    """One block of a message's content, of any type; what is not named here (cache_control) has no effect."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None
    source: Any = None


class AnthropicMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class ClientTool(msgspec.Struct, frozen=True):
    """One that the client runs; those that Anthropic runs have a type of their own."""

    name: _Name
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    type: str | None = None


class ToolChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, frozen=True):
    """How long is up to the model; `budget_tokens` has no effect."""

    type: Literal["enabled", "disabled", "adaptive"]


class OutputFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: OutputFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    task_budget: Any = None  # without effect


class CountBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What makes the prompt. Null is the same as not given."""

    model: str
    messages: Annotated[list[AnthropicMessage], Meta(min_length=1, max_length=10_000)]
    system: str | list[Block] | None = None
    tools: Annotated[list[ClientTool], Meta(max_length=_MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    output_config: OutputConfig | None = None
    thinking: Thinking | None = None
    # Accepted, and without effect on the answer.
    cache_control: Any = None
    context_management: Any = None
    diagnostics: Any = None
    # Not honoured: refused unless they carry a value of NEUTRAL.
    mcp_servers: Any = None
    speed: Any = None


class MessagesBody(CountBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    max_tokens: Annotated[int, Meta(ge=1, le=MAX_NEW_TOKENS)]
    stop_sequences: Annotated[list[_Stop], Meta(max_length=_MAX_STOPS)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=MAX_NEW_TOKENS)] | None = None
    stream: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    inference_geo: Any = None
    container: Any = None


_messages = msgspec.json.Decoder(MessagesBody)
_count = msgspec.json.Decoder(CountBody)


def read_messages(raw: bytes) -> ChatBody:
    body = decode(_messages, raw)
    refuse_unsupported(body, NEUTRAL, "")
    user = (body.metadata or {}).get("user_id")
    return msgspec.structs.replace(
        _chat(body),
        stop=body.stop_sequences,
        user=user if isinstance(user, str) else None,
        **{name: getattr(body, name) for name in _SAME},
    )


def read_count(raw: bytes) -> ChatBody:
    body = decode(_count, raw)
    refuse_unsupported(body, NEUTRAL, "")
    return _chat(body)


def _chat(body: CountBody) -> ChatBody:
    messages = [Message("system", system)] if (system := _system(body.system)) else []
    for index, message in enumerate(body.messages):
        made = _messages_of(message, f"messages[{index}].content")
        if message.role == "system" and messages and messages[-1].role != "system":
            # Templates know system messages at the beginning alone.
            made = [Message("user", f"<system>\n{made[0].content}\n</system>")]
        messages += made
    choice, output = body.tool_choice, body.output_config or OutputConfig()
    turns, thinks = list(_turns(messages)), body.thinking is not None and body.thinking.type != "disabled"
    effort = output.effort or "medium"
    return ChatBody(
        model=body.model,
        messages=turns,
        continue_final_message=turns[-1].role == "assistant" or None,
        reasoning_effort=_EFFORTS.get(effort, effort) if thinks else "none",
        tools=[_tool(tool, index) for index, tool in enumerate(body.tools or ())] or None,
        tool_choice=None if choice is None else _choice(choice),
        parallel_tool_calls=None if choice is None else not choice.disable_parallel_tool_use,
        response_format=None if output.format is None else _format(output.format),
    )


def _system(given: str | list[Block] | None) -> str:
    if isinstance(given, list):
        texts = [_text(block, f"system[{index}]") for index, block in enumerate(given)]
    else:
        texts = [given or ""]
    return "\n".join(text for text in texts if text and not text.startswith(_BILLING))


def _messages_of(message: AnthropicMessage, where: str) -> list[Message]:
    """Results of tools are messages of their own, before what the user says to them."""
    if isinstance(message.content, str):
        return [Message(message.role, message.content)]
    parts, thoughts, calls, results = list[Part](), [], [], []
    for index, block in enumerate(message.content):
        place = f"{where}[{index}]"
        if block.type == "tool_use" and message.role == "assistant":
            calls.append(_call(block, place))
        elif block.type == "tool_result" and message.role == "user":
            results.append(_result(block, place))
        elif block.type == "thinking" and message.role == "assistant":
            thoughts.append(block.thinking or "")
        elif block.type == "image" and message.role == "user":
            parts.append(_image(block, f"{place}.source"))
        elif block.type != "redacted_thinking":
            parts.append(Part("text", _text(block, place)))
    if results and not parts:
        return results
    said = _said(parts)
    thought = "\n".join(thoughts) or None
    return [*results, Message(message.role, said, tool_calls=calls or None, reasoning_content=thought)]


def _turns(messages: Iterable[Message]) -> Iterator[Message]:
    """Those that follow each other in one role as one: templates want turns that alternate."""
    for role, group in groupby(messages, key=attrgetter("role")):
        same = list(group)
        if role == "tool" or len(same) == 1:
            yield from same
        else:
            calls = [call for each in same for call in each.tool_calls or ()]
            said = _said([part for each in same for part in _parts(each)])
            thought = same[-1].reasoning_content
            yield Message(role, said, tool_calls=calls or None, reasoning_content=thought)


def _said(parts: list[Part]) -> str | list[Part]:
    """One text, unless there are images in it."""
    if any(part.image is not None for part in parts):
        return parts
    return "\n".join(part.text or "" for part in parts)


def _parts(message: Message) -> list[Part]:
    content = message.content
    return content if isinstance(content, list) else [Part("text", content or "")]


def _image(block: Block, where: str) -> Part:
    try:
        return msgspec.convert(block.source, ImageSource).part(where)
    except msgspec.ValidationError as error:
        raise invalid(f"{where}: {error}", where) from None


def _call(block: Block, where: str) -> MadeCall:
    if block.id is None or block.name is None or block.input is None:
        raise invalid(f"{where}: a tool_use block has an id, a name and an input", where)
    return MadeCall(block.id, CalledFunction(block.name, msgspec.json.encode(block.input).decode()))


def _result(block: Block, where: str) -> Message:
    if block.tool_use_id is None:
        raise invalid(f"{where}.tool_use_id: expected the id of a tool_use block", f"{where}.tool_use_id")
    content = block.content or ""
    if not isinstance(content, str):
        texts = [_text(each, f"{where}.content[{index}]") for index, each in enumerate(content)]
        content = "\n".join(texts)
    return Message("tool", content, tool_call_id=block.tool_use_id)


def _text(block: Block, where: str) -> str:
    if block.type != "text":
        kind = block.type if block.type.isidentifier() and len(block.type) < 32 else "other"
        allowed = "allowed: text, and tool_use of an assistant, tool_result and image of a user"
        message = f"{where}: {kind} blocks are not supported here; {allowed}"
        raise _unsupported(message, f"{where}.type")
    if block.text is None:
        raise invalid(f"{where}.text: expected a string", f"{where}.text")
    return block.text


def _tool(tool: ClientTool, index: int) -> Tool:
    where = f"tools[{index}]"
    if tool.type not in (None, "custom"):
        kind = tool.type if tool.type.isidentifier() and len(tool.type) < 64 else "this type"
        message = (
            f"{where}: tools of type {kind} are not supported here; allowed: custom, with an input_schema"
        )
        raise _unsupported(message, f"{where}.type")
    if tool.input_schema is None:
        raise invalid(f"{where}.input_schema: expected a JSON schema", f"{where}.input_schema")
    return Tool(ToolFunction(tool.name, tool.description, tool.input_schema))


def _choice(choice: ToolChoice) -> Any:
    if choice.type != "tool":
        return _CHOICES[choice.type]
    if choice.name is None:
        raise invalid("tool_choice.name: expected the name of a tool", "tool_choice.name")
    return NamedTool(Named(choice.name))


def _format(output: OutputFormat) -> ResponseFormat:
    return ResponseFormat("json_schema", Schema("output", output.schema))


def _unsupported(message: str, param: str) -> InflightError:
    return InflightError(ErrorKind.UNSUPPORTED, message, param)
