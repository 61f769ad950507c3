"""The request bodies, field by field: what each field may be, and what it asks of the engine."""

from __future__ import annotations

import secrets
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.generation import MAX_BIASES, MAX_NEW_TOKENS, GenerationCall
from router.core.messages import Message, Name
from router.request.decoding import (
    MOST_CONTAINERS,
    UNREADABLE,
    check_containers,
    decode,
    invalid,
    unreadable,
)

if TYPE_CHECKING:
    from router.routing.checkpoint import SamplingDefaults

_Tokens = Annotated[int, Meta(ge=1, le=MAX_NEW_TOKENS)]
_StopText = Annotated[str, Meta(min_length=1, max_length=1000)]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
MAX_CHOICES = 16
MAX_TOOLS = 128
_MOST_DIGITS = 9
_MOST_BIAS = 100.0
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
ServiceTier = Literal["auto", "default", "flex", "priority"]
# OpenAI's tiers that are not the engine's default.
_TIERS: dict[str | None, str] = {"flex": "batch", "priority": "interactive"}
# Below this, logits divided by the temperature leave the range of 32-bit floats.
_GREEDY_BELOW = 1e-4


class ToolFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    function: ToolFunction
    type: Literal["function"] = "function"


class NamedFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name


class NamedTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    function: NamedFunction
    type: Literal["function"] = "function"


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Schema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`strict` makes no difference: the answer always follows the schema."""

    name: Name
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: Schema | None = None


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What chat and plain completions share. Null is the same as not given."""

    model: str
    max_tokens: _Tokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    stop: _StopText | Annotated[list[_StopText], Meta(max_length=4)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # Extensions that other servers of open models have too.
    top_k: Annotated[int, Meta(ge=0, le=MAX_NEW_TOKENS)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=10)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_NEW_TOKENS)] | None = None
    ignore_eos: bool | None = None
    # Accepted, and without effect on the answer.
    user: str | None = None
    metadata: Any = None
    store: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    prompt_cache_options: Any = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    # Its ids and values are judged when their number is known to be bearable.
    logit_bias: Annotated[dict[str, float], Meta(max_length=MAX_BIASES)] | None = None
    service_tier: ServiceTier | None = None


# Fields that are not honoured yet are refused unless they carry a value of NEUTRAL.
class ChatBody(Options, frozen=True, forbid_unknown_fields=True, kw_only=True):
    messages: Annotated[list[Message], Meta(min_length=1, max_length=10_000)]
    max_completion_tokens: _Tokens | None = None
    store: bool | None = None
    metadata: Metadata | None = None  # of what is stored
    audio: Any = None
    function_call: Any = None
    functions: Any = None
    modalities: Any = None
    moderation: Any = None
    parallel_tool_calls: bool | None = None
    prediction: Any = None
    reasoning_effort: Any = None
    response_format: ResponseFormat | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    verbosity: Any = None
    web_search_options: Any = None


class CompletionBody(Options, frozen=True, forbid_unknown_fields=True, kw_only=True):
    prompt: str | list[Any]
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    echo: bool | None = None
    best_of: Any = None
    suffix: Any = None


# Values that ask for what the router does anyway.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
    "best_of": (1,),
    "suffix": ("",),
}
MESSAGE_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "refusal": ("",),
    "annotations": ([],),
    "audio": (),
    "function_call": (),
}

# Few bodies and messages have any of these.
_CHAT_NEUTRAL = [name for name in NEUTRAL if name in ChatBody.__struct_fields__]
_unusual_in_chat = attrgetter(*_CHAT_NEUTRAL)
_USUAL_CHAT = (None,) * len(_CHAT_NEUTRAL)
_unusual_in_message = attrgetter(*MESSAGE_NEUTRAL)
_USUAL_MESSAGE = (None,) * len(MESSAGE_NEUTRAL)
_chat = msgspec.json.Decoder(ChatBody)
_completion = msgspec.json.Decoder(CompletionBody)


def decode_chat(body: bytes) -> ChatBody:
    if len(body) > MOST_CONTAINERS:
        check_containers(body)
    try:  # as `decode` does, which most chats need not pass
        decoded = _chat.decode(body)
    except UNREADABLE as error:
        raise unreadable(error, ChatBody) from None
    if _unusual_in_chat(decoded) != _USUAL_CHAT:
        refuse_unsupported(decoded, NEUTRAL, "")
    _check_options(decoded)
    for index, message in enumerate(decoded.messages):
        if _unusual_in_message(message) != _USUAL_MESSAGE:
            refuse_unsupported(message, MESSAGE_NEUTRAL, f"messages[{index}].")
    if decoded.top_logprobs and not decoded.logprobs:
        raise invalid("top_logprobs: is only allowed when logprobs is true", "top_logprobs")
    asked = decoded.response_format
    if asked is not None and (asked.type == "json_schema") != (asked.json_schema is not None):
        raise invalid(
            "response_format: json_schema goes with type json_schema, and with no other",
            "response_format.json_schema",
        )
    return decoded


def decode_completion(body: bytes) -> CompletionBody:
    decoded = decode(_completion, body)
    refuse_unsupported(decoded, NEUTRAL, "")
    _check_options(decoded)
    return decoded


def _check_options(body: Options) -> None:
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options is only allowed when stream is true", "stream_options")
    if body.logit_bias:
        _check_biases(body.logit_bias)


def _check_biases(biases: dict[str, float]) -> None:
    for token, bias in biases.items():
        if not (token.isascii() and token.isdigit() and len(token) <= _MOST_DIGITS):
            raise invalid("logit_bias: a key: expected a token id, as digits", "logit_bias")
        if not -_MOST_BIAS <= bias <= _MOST_BIAS:
            allowed = f"expected -{_MOST_BIAS:g} to {_MOST_BIAS:g}"
            raise invalid(f"logit_bias[{token}]: {allowed}, got {bias:g}", f"logit_bias[{token}]")


def refuse_unsupported(struct: msgspec.Struct, neutral: dict[str, tuple[Any, ...]], prefix: str) -> None:
    for name, allowed in neutral.items():
        value = getattr(struct, name, None)
        if value is None or any(value == entry and type(value) is type(entry) for entry in allowed):
            continue
        only = f" other than {msgspec.json.encode(allowed[0]).decode()}" if allowed else ""
        message = f"{prefix}{name} is not supported yet with a value{only}"
        raise InflightError(ErrorKind.UNSUPPORTED, message, f"{prefix}{name}")


def several(call: GenerationCall, count: int | None) -> list[GenerationCall]:
    """As many answers to one prompt; the first is the one that would come alone."""
    others = (
        msgspec.structs.replace(
            call,
            request_id=f"{call.request_id}.{index}",
            seed=(call.seed + index) % 2**64,
            shares_prompt=True,
        )
        for index in range(1, count or 1)
    )
    return [call, *others]


def generation_call(
    body: Options,
    prompt: str,
    request_id: str,
    tenant: str,
    max_tokens: int,
    defaults: SamplingDefaults,
    **more: Any,
) -> GenerationCall:
    """What a body asks of the engine; where it is silent, as the checkpoint says."""
    temperature = defaults.temperature if body.temperature is None else body.temperature
    greedy = temperature < _GREEDY_BELOW
    min_tokens = body.min_tokens or 0
    if min_tokens > max_tokens:
        raise invalid(f"min_tokens: {min_tokens} is more than the {max_tokens} allowed", "min_tokens")
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    seed = secrets.randbits(63) if body.seed is None else body.seed % 2**64
    return GenerationCall(
        request_id=request_id,
        prompt=prompt,
        tenant=tenant,
        max_tokens=max_tokens,
        seed=seed,
        stop=stop,
        temperature=1.0 if greedy else temperature,
        top_k=1 if greedy else defaults.top_k if body.top_k is None else body.top_k,
        top_p=defaults.top_p if body.top_p is None else body.top_p,
        min_tokens=min_tokens,
        repetition_penalty=body.repetition_penalty or defaults.repetition_penalty,  # it is never 0
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        ignore_eos=bool(body.ignore_eos),
        logit_bias=body.logit_bias or None,
        tier=_TIERS.get(body.service_tier),
        **more,
    )
