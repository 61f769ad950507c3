"""The body of a response to be made, and the chat that it stands for."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from python_backend.wire.errors import InflightError
from router.chat.bodies import (
    MAX_TOOLS,
    ChatBody,
    Effort,
    Metadata,
    ResponseFormat,
    Schema,
    ServiceTier,
    refuse_unsupported,
)
from router.content.conversations.items import GivenItem
from router.core.generation import MAX_NEW_TOKENS
from router.core.messages import Message, Name
from router.openai.response_tools import (
    ChosenTool,
    OfferedTool,
    chat_choice,
    chat_tools,
    check_response_tools,
)
from router.request.decoding import decode, invalid
from router.routing.models import ServedModel

MOST_ITEMS = 2_000
_LOGPROBS = "message.output_text.logprobs"
Includable = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]


class TextFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None  # without effect


class Reasoning(msgspec.Struct, frozen=True):
    """`effort` is for templates that know it. With `summary`, thoughts come as their own summary."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None

    @property
    def is_summarized(self) -> bool:
        return (self.summary or self.generate_summary) is not None


class ConversationId(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str


class ResponseStreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_obfuscation: bool | None = None


class ResponseBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Null is the same as not given."""

    model: str
    input: str | Annotated[list[GivenItem], Meta(min_length=1, max_length=MOST_ITEMS)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=MAX_NEW_TOKENS)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    text: TextConfig | None = None
    tools: Annotated[list[OfferedTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationId | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: Metadata | None = None
    # Of what can be included there are log probabilities alone; of the rest there is nothing here.
    include: list[Includable] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    service_tier: ServiceTier | None = None
    # Accepted, and without effect on the answer.
    user: str | None = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    prompt_cache_options: Any = None
    client_metadata: Any = None
    reasoning: Reasoning | None = None
    # Not honoured: refused unless they carry a value of NEUTRAL.
    access_programs: Any = None
    context_management: Any = None
    image: Any = None
    max_tool_calls: Any = None
    moderation: Any = None
    prompt: Any = None

    @property
    def conversation_id(self) -> str | None:
        return self.conversation.id if isinstance(self.conversation, ConversationId) else self.conversation

    @property
    def has_log(self) -> bool:
        return _LOGPROBS in (self.include or ())

    @property
    def cuts_history(self) -> bool:
        """Whether old turns are dropped to make the rest fit: always in a conversation unless forbidden."""
        return self.truncation == "auto" or (self.conversation is not None and self.truncation is None)


class InputTokensBody(ResponseBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A response that is not to be made; there may be nothing new in it."""

    input: str | Annotated[list[GivenItem], Meta(max_length=MOST_ITEMS)] = ""
    personality: Any = None


NEUTRAL: dict[str, tuple[Any, ...]] = {
    "access_programs": ([],),
    "context_management": ([],),
    "image": (),
    "max_tool_calls": (),
    "moderation": (),
    "prompt": (),
}
_decoder = msgspec.json.Decoder(ResponseBody)
_counted = msgspec.json.Decoder(InputTokensBody)


def decode_response(body: bytes) -> ResponseBody:
    return _checked(decode(_decoder, body))


def decode_input_tokens(body: bytes) -> ResponseBody:
    return _checked(decode(_counted, body))


def _checked(decoded: ResponseBody) -> ResponseBody:
    refuse_unsupported(decoded, NEUTRAL, "")
    if decoded.top_logprobs and not decoded.has_log:
        raise invalid(f"top_logprobs: is only allowed when include has {_LOGPROBS}", "top_logprobs")
    if decoded.stream_options is not None and not decoded.stream:
        raise invalid("stream_options is only allowed when stream is true", "stream_options")
    if decoded.background and decoded.store is False:
        raise invalid("store: must be true with background, as the response is read from the store", "store")
    if decoded.previous_response_id is not None and decoded.conversation is not None:
        raise invalid("give either previous_response_id or conversation, not both", "previous_response_id")
    _check_format(decoded)
    check_response_tools(decoded.tools, decoded.tool_choice)
    return decoded


def _check_format(body: ResponseBody) -> None:
    asked = None if body.text is None else body.text.format
    if asked is None:
        return
    has_schema = asked.name is not None and asked.schema is not None
    if (asked.type == "json_schema") != has_schema or (not has_schema and (asked.name or asked.schema)):
        raise invalid("text.format: name and schema are only allowed with type json_schema", "text.format")


def as_chat(body: ResponseBody, messages: list[Message]) -> ChatBody:
    """The chat completion that does the same."""
    return ChatBody(
        model=body.model,
        messages=messages,
        max_completion_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        stream=body.stream,
        response_format=_response_format(body),
        tools=chat_tools(body.tools) if body.tools else None,
        tool_choice=chat_choice(body.tool_choice),
        reasoning_effort=None if body.reasoning is None else body.reasoning.effort,
        parallel_tool_calls=body.parallel_tool_calls,
        logprobs=body.has_log or None,
        top_logprobs=body.top_logprobs if body.has_log else None,
        service_tier=body.service_tier,
    )


def _response_format(body: ResponseBody) -> ResponseFormat | None:
    asked = None if body.text is None else body.text.format
    if asked is None:
        return None
    if asked.name is None or asked.schema is None:
        return ResponseFormat(asked.type)
    return ResponseFormat(asked.type, Schema(asked.name, asked.schema, asked.description, asked.strict))


def response_head(body: ResponseBody, response_id: str, created_s: int, model: ServedModel) -> dict[str, Any]:
    """What a response says of its request, from its first event to its last."""
    chosen = body.tool_choice
    reasoning = body.reasoning or Reasoning()
    asked = None if body.text is None else body.text.format
    conversation_id = body.conversation_id
    verbosity = None if body.text is None else body.text.verbosity
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_s,
        "background": bool(body.background),
        "conversation": None if conversation_id is None else {"id": conversation_id},
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "metadata": body.metadata or {},
        "model": model.name,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary},
        "service_tier": "default" if body.service_tier in (None, "auto") else body.service_tier,
        "store": body.store is not False,
        "temperature": model.defaults.temperature if body.temperature is None else body.temperature,
        "text": {"format": asked or {"type": "text"}, "verbosity": verbosity or "medium"},
        "tool_choice": chosen or "auto",
        "tools": body.tools or [],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": model.defaults.top_p if body.top_p is None else body.top_p,
        "truncation": body.truncation or ("auto" if body.cuts_history else "disabled"),
        "user": body.user,
    }


# Where a chat has what a response has elsewhere.
_FIELDS = {
    "response_format": "text.format",
    ".function.parameters": ".parameters",
    ".custom.format": ".format",
}


def in_response_words(error: InflightError) -> InflightError:
    """An error of the chat that does the same, which names fields of a chat."""
    if error.param == "messages":
        return InflightError(error.kind, error.message, "input", error.retry_after_s, error.code)
    for chat, own in _FIELDS.items():
        if error.param is not None and chat in error.param:
            param = error.param.replace(chat, own)
            message = error.message.replace(error.param, param)
            return InflightError(error.kind, message, param, error.retry_after_s, error.code)
    return error
