"""The body of a chat, into which other APIs' are turned, field by field: what each of them may be."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from python_backend.wire.errors import ErrorKind, InflightError
from router.chat.tool_bodies import NamedTool, Tool
from router.core.generation import MAX_BIASES, MAX_NEW_TOKENS, StopTokenIds
from router.core.messages import Message, Name
from router.request.decoding import invalid

_Tokens = Annotated[int, Meta(ge=1, le=MAX_NEW_TOKENS)]
_StopText = Annotated[str, Meta(min_length=1, max_length=1000)]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
MAX_CHOICES = 16
MAX_TOOLS = 128
_MOST_CHOICES_OF_TEXT = 1000
_MOST_DIGITS = 9
_MOST_BIAS = 100.0
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
ServiceTier = Literal["auto", "default", "flex", "priority"]
Effort = Annotated[str, Meta(max_length=64)]
_Choices = Annotated[list[str], Meta(min_length=1, max_length=_MOST_CHOICES_OF_TEXT)]


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    # Of other servers of open models: with `include_usage`, each chunk has the usage so far.
    continuous_usage_stats: bool | None = None


class Schema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`strict` makes no difference: the answer always follows the schema."""

    name: Name
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: Schema | None = None


class StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of these, as vLLM has them."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: _Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None


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
    top_k: Annotated[int, Meta(ge=-1, le=MAX_NEW_TOKENS)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=10)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_NEW_TOKENS)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: StopTokenIds | None = None
    skip_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: _Choices | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None
    # Accepted, and without effect on the answer.
    user: str | None = None
    metadata: Any = None
    store: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    prompt_cache_options: Any = None
    client_metadata: Any = None
    request_id: Any = None
    guided_decoding_backend: Any = None
    # Of other servers, and not honoured: refused unless they carry a value of NEUTRAL.
    allowed_token_ids: Any = None
    bad_words: Any = None
    best_of: Any = None
    early_stopping: Any = None
    include_stop_str_in_output: Any = None
    length_penalty: Any = None
    priority: Any = None
    prompt_logprobs: Any = None
    return_tokens_as_token_ids: Any = None
    spaces_between_special_tokens: Any = None
    truncate_prompt_tokens: Any = None
    use_beam_search: Any = None
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
    reasoning_effort: Effort | None = None
    response_format: ResponseFormat | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    verbosity: Any = None
    web_search_options: Any = None
    # How the chat template is rendered.
    chat_template_kwargs: Annotated[dict[str, Any], Meta(max_length=32)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: Any = None
    chat_template: Any = None
    documents: Any = None
    echo: Any = None


# Values that ask for what the router does anyway.
OPTIONS_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "best_of": (1,),
    "early_stopping": (False,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1.0, 1),
    "priority": (0,),
    "prompt_logprobs": (),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}


def check_options(body: Options) -> None:
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
