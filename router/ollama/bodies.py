"""The bodies of Ollama's API, and the chats that they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from router.chat.bodies import MAX_TOOLS, ChatBody, ResponseFormat, Schema, refuse_unsupported
from router.chat.tool_bodies import Tool, check_tools
from router.core.generation import MAX_NEW_TOKENS
from router.core.messages import CalledFunction, MadeCall, Message, Part, image_part
from router.request.decoding import decode, invalid

_Stop = Annotated[str, Meta(min_length=1, max_length=1000)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Images = Annotated[list[str], Meta(max_length=1000)]  # files in base64
# Values that ask for what the router does anyway; all others of these fields are refused.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "logprobs": (False,),
    "top_logprobs": (0,),
    "suffix": ("",),
    "template": ("",),
    "context": ([],),
}
_NEUTRAL_NUMBERS = {"mirostat": 0, "repeat_last_n": -1, "tfs_z": 1, "typical_p": 1}
OPTIONS_NEUTRAL = {name: (number, float(number)) for name, number in _NEUTRAL_NUMBERS.items()}
# Advice to whoever loads a model, which has been done here; and what goes with a mirostat above 0.
_ADVICE = (
    *("f16_kv", "logits_all", "low_vram", "main_gpu", "num_batch", "num_ctx", "num_gpu", "num_keep"),
    *("num_thread", "numa", "use_mlock", "use_mmap", "vocab_only", "penalize_newline"),
    *("mirostat_eta", "mirostat_tau"),
)
if TYPE_CHECKING:
    from collections.abc import Sequence

    _Unused = msgspec.Struct
else:
    _fields = [(name, Any, None) for name in (*_ADVICE, *OPTIONS_NEUTRAL)]
    _Unused = msgspec.defstruct("_Unused", _fields, frozen=True)


class OllamaOptions(_Unused, frozen=True, forbid_unknown_fields=True):
    num_predict: Annotated[int, Meta(ge=-2, le=MAX_NEW_TOKENS)] | None = None  # not above 0: without limit
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=MAX_NEW_TOKENS)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None  # -1: another one each time
    stop: _Stop | Annotated[list[_Stop], Meta(max_length=16)] | None = None
    repeat_penalty: Annotated[float, Meta(ge=0.01, le=10)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None


class MadeFunction(msgspec.Struct, frozen=True):
    name: str
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)


class OllamaCall(msgspec.Struct, frozen=True):
    function: MadeFunction
    id: str | None = None


class OllamaMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    thinking: str | None = None
    images: _Images | None = None


class _Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What chats and prompts share. Null is the same as not given."""

    model: str
    stream: bool | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    options: OllamaOptions | None = None
    think: bool | Literal["low", "medium", "high"] | None = None
    keep_alive: Any = None  # models stay loaded
    shift: Any = None
    truncate: Any = None
    # Not honoured: refused unless they carry a value of NEUTRAL.
    logprobs: Any = None
    top_logprobs: Any = None

    def chat(self, messages: list[Message], tools: list[Tool] | None = None) -> ChatBody:
        asked = self.options or OllamaOptions()
        return ChatBody(
            model=served_name(self.model),
            messages=messages,
            tools=tools,
            stream=self.stream is not False,
            response_format=_format(self.format),
            reasoning_effort=_EFFORTS.get(self.think, self.think),
            continue_final_message=(messages and messages[-1].role == "assistant") or None,
            max_tokens=asked.num_predict if (asked.num_predict or 0) > 0 else None,
            seed=None if asked.seed == -1 else asked.seed,
            repetition_penalty=asked.repeat_penalty,
            **{name: getattr(asked, name) for name in _SAME},
        )


_SAME = ("temperature", "top_p", "top_k", "min_p", "stop", "presence_penalty", "frequency_penalty")
_EFFORTS: dict[Any, Any] = {True: "medium", False: "none"}


class OllamaChatBody(_Asked, frozen=True, forbid_unknown_fields=True, kw_only=True):
    messages: Annotated[list[OllamaMessage], Meta(max_length=10_000)] = []
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None


class OllamaPromptBody(_Asked, frozen=True, forbid_unknown_fields=True, kw_only=True):
    prompt: str = ""
    system: str | None = None
    raw: bool | None = None
    images: _Images | None = None
    suffix: Any = None
    template: Any = None
    context: Any = None


class EmbedBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`prompt` is one text, for the older of the two endpoints; `input` is for the other."""

    model: str
    input: str | list[str] | None = None
    prompt: str | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    truncate: Any = None
    options: OllamaOptions | None = None
    keep_alive: Any = None

    def texts(self, is_one: bool) -> str | list[str]:
        refuse_unsupported(self, {"truncate": (True,)}, "")  # longer texts are always cut
        texts, field = (self.prompt, "prompt") if is_one else (self.input, "input")
        if texts is None:
            raise invalid(f"Missing required parameter: {field}", field)
        return texts


class ShowBody(msgspec.Struct, frozen=True):
    model: str = ""
    name: str = ""  # what it was called before


_decoders = {
    kind: msgspec.json.Decoder(kind) for kind in (OllamaChatBody, OllamaPromptBody, EmbedBody, ShowBody)
}


def served_name(asked: str) -> str:
    """Ollama's names have a tag, and those without one mean this."""
    return asked.removesuffix(":latest")


def read(kind: type[Any], raw: bytes) -> Any:
    body: Any = decode(_decoders[kind], raw)
    refuse_unsupported(body, NEUTRAL, "")
    if getattr(body, "options", None) is not None:
        refuse_unsupported(body.options, OPTIONS_NEUTRAL, "options.")
    return body


def read_chat(raw: bytes) -> ChatBody:
    body: OllamaChatBody = read(OllamaChatBody, raw)
    check_tools(body.tools, None)
    return body.chat([_message(each, index) for index, each in enumerate(body.messages)], body.tools)


def _message(given: OllamaMessage, index: int) -> Message:
    refuse_unsupported(given, NEUTRAL, f"messages[{index}].")
    if given.tool_calls and given.role != "assistant":
        where = f"messages[{index}].tool_calls"
        raise invalid(f"{where}: only allowed with the role assistant", where)
    calls = [
        MadeCall(
            call.id or f"call_{index}_{number}",
            CalledFunction(call.function.name, msgspec.json.encode(call.function.arguments).decode()),
        )
        for number, call in enumerate(given.tool_calls or ())
    ]
    call_id = given.tool_call_id or given.tool_name or ""
    return Message(
        given.role,
        with_images(given.content or "", given.images),
        tool_calls=calls or None,
        tool_call_id=call_id if given.role == "tool" else None,
        reasoning_content=given.thinking,
    )


def with_images(text: str, images: Sequence[str] | None) -> str | list[Part]:
    """What is said, behind what is shown with it."""
    if not images:
        return text
    return [*(image_part(f"data:;base64,{each}") for each in images), Part("text", text)]


def _format(asked: str | dict[str, Any] | None) -> ResponseFormat | None:
    if isinstance(asked, dict):
        return ResponseFormat("json_schema", Schema("format", asked))
    return ResponseFormat("json_object") if asked else None
