"""Builds the protobufs that Triton gets and reads the ones it sends, by the tables of `wire`."""

from __future__ import annotations

import math
import secrets
import struct
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from google.protobuf.message import DecodeError

from python_backend.wire import codec
from python_backend.wire.engine_report import (
    ADAPTER,
    CONFIGURE,
    DROP_ADAPTER,
    ENGINE_REPORT,
    REPORT,
    ROUTER,
    read_report,
)
from python_backend.wire.pools import CONTEXT_PARAMS, OUT_CONTEXT_PARAMS, REQUEST_TYPE
from python_backend.wire.shared_prefix import SHARED_PREFIX
from python_backend.wire.tensors import ENSEMBLE, TENSORRT_LLM, ModelContract
from python_backend.wire.tiers import Tier
from router.core.generation import LITERAL_MARK, Delta, LoggedToken
from router.core.stages import EngineTimes
from router.triton.protocol import service_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from python_backend.wire.engine_report import EngineReport
    from router.core.generation import GenerationCall

STOP_WORDS = 4
# Triton batches only requests with the same set of inputs and the same shapes, so each request sends all of
# these, in this order, and pads its stop words. Only `end_id` and what
# _GUIDE_INPUTS names come and go, and ids in place of a text.
_INPUTS = (
    "text_input",
    "max_tokens",
    "stop_words",
    "top_k",
    "top_p",
    "temperature",
    "repetition_penalty",
    "min_tokens",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "return_num_input_tokens",
    "return_num_output_tokens",
    "stream",
    "exclude_input_in_output",
    "return_perf_metrics",
)
# These go past the step that Triton batches, so they may come and go too.
_GUIDE_INPUTS = ("guided_decoding_guide_type", "guided_decoding_guide")
_NO_END_ID = -1
# No request has this id, so that to stop it does nothing.
_NOBODY = "report"
# Tensors of one number, each token has some: looking up their format takes longer than reading them.
_INT32, _INT64 = struct.Struct("<i").unpack, struct.Struct("<q").unpack
_ENGINE_TIMES = {
    "arrival_time_ns": "arrival_s",
    "first_scheduled_time_ns": "first_scheduled_s",
    "first_token_time_ns": "first_token_s",
    "last_token_time_ns": "last_token_s",
}


def _template(model: str, contract: ModelContract, names: Sequence[str]) -> Any:
    message = service_pb2.ModelInferRequest(model_name=model)
    for name in names:
        tensor = contract.input(name)
        width = STOP_WORDS if name == "stop_words" else 1
        message.inputs.add(name=name, datatype=tensor.dtype, shape=[1, width])
    return message


def _tag(message: Any, name: str) -> bytes:
    """What comes before a field on the wire: its number, and that a length follows."""
    number = message.DESCRIPTOR.fields_by_name[name].number
    return bytes((number << 3 | 2,))


_ID = _tag(service_pb2.ModelInferRequest, "id")
_RAW_INPUT = _tag(service_pb2.ModelInferRequest, "raw_input_contents")
_INFER_RESPONSE = _tag(service_pb2.ModelStreamInferResponse, "infer_response")
_RAW_OUTPUT = _tag(service_pb2.ModelInferResponse, "raw_output_contents")
_TWO_BYTES = 1 << 14  # lengths below it have one byte or two


@lru_cache(maxsize=4096)
def _size(size: int) -> bytes:
    """A number as protobuf writes it: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while size >= 128:
        encoded.append(size & 127 | 128)
        size >>= 7
    encoded.append(size)
    return bytes(encoded)


def _raw(data: bytes) -> bytes:
    return b"".join((_RAW_INPUT, _size(len(data)), data))


@lru_cache(maxsize=4096)
def _raw_number(dtype: str, value: float) -> bytes:
    """Most requests have the same few values."""
    return _raw(codec.encode(dtype, [value]))


@lru_cache(maxsize=4096)
def _sampling(
    top_k: int,
    top_p: float,
    temperature: float,
    repetition_penalty: float,
    min_tokens: int,
    presence_penalty: float,
    frequency_penalty: float,
) -> bytes:
    """The values of _INPUTS from top_k on."""
    penalties = (presence_penalty, frequency_penalty)
    return b"".join(
        (
            _raw_number("INT32", top_k),
            *(_raw_number("FP32", value) for value in (top_p, temperature, repetition_penalty)),
            _raw_number("INT32", min_tokens),
            *(_raw_number("FP32", value) for value in penalties),
        )
    )


# As engines know this process: what it has begun ends with it.
THIS_ROUTER = secrets.token_hex(8)


@lru_cache(maxsize=4096)
def _usual_parameters(tenant: str, add_special_tokens: bool, weight: float) -> bytes:
    message = service_pb2.ModelInferRequest()
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    message.parameters["tenant"].string_param = tenant
    message.parameters[ROUTER].string_param = THIS_ROUTER
    message.parameters["add_special_tokens"].bool_param = add_special_tokens
    if weight:
        message.parameters["inflight_weight"].double_param = weight
    return bytes(message.SerializeToString())


_NO_STOP_WORDS = _raw(codec.encode("BYTES", [""] * STOP_WORDS))
_FLAGS = _raw(codec.encode("BOOL", [True])) * 5
_SEED = _RAW_INPUT + b"\x08"  # eight bytes follow
_UNUSUAL = (
    "guide",
    "prompt_ids",
    "images",
    "logit_bias",
    "min_p",
    "stop_token_ids",
    "shows_special_tokens",
    "returns_token_ids",
    "top_log_probs",
    "tier",
    "trace",
    "marked_prompt",
    "shared_prefix",
    "part",
)
_unusual = attrgetter(*_UNUSUAL)
_NOTHING_UNUSUAL = (None,) * len(_UNUSUAL)


class GenerateRequests:
    """Requests to one pipeline, as bytes; with the name of the LoRA adapter that is to answer, if any.

    The parts of a protobuf may be written one after another. So what never changes is written once, what
    seldom changes is kept, and no message is built and copied for what is left.
    """

    def __init__(self, pipeline: str, adapter: str = "") -> None:
        usual = _template(pipeline, ENSEMBLE, _INPUTS)
        without_end = _template(pipeline, ENSEMBLE, (*_INPUTS, "end_id"))
        if adapter:
            for message in (usual, without_end):
                message.parameters[ADAPTER].string_param = adapter
        self._template: bytes = usual.SerializeToString()
        self._without_end: bytes = without_end.SerializeToString()

    def encode(self, call: GenerationCall) -> bytes:
        request_id, prompt = call.request_id.encode(), (call.marked_prompt or call.prompt).encode()
        parts = [
            self._without_end if call.ignore_eos else self._template,
            _usual_parameters(call.tenant, call.add_special_tokens, call.weight),
            _ID + _size(len(request_id)) + request_id,
            # The values, in the order of _INPUTS; the prompt is not copied before the end.
            _RAW_INPUT + _size(len(prompt) + 4) + len(prompt).to_bytes(4, "little"),
            prompt,
            _raw_number("INT32", call.max_tokens),
            _stop_words(call.stop) if call.stop else _NO_STOP_WORDS,
            _sampling(
                call.top_k,
                call.top_p,
                call.temperature,
                call.repetition_penalty,
                call.min_tokens,
                call.presence_penalty,
                call.frequency_penalty,
            ),
            _SEED,
            call.seed.to_bytes(8, "little"),
            _FLAGS,
        ]
        if call.ignore_eos:
            parts.append(_raw_number("INT32", _NO_END_ID))
        if call.echo or _unusual(call) != _NOTHING_UNUSUAL:
            parts.append(_more(call).SerializeToString())
        return b"".join(parts)

    def build(self, call: GenerationCall) -> Any:
        """The same as a message, to look at."""
        return service_pb2.ModelInferRequest.FromString(self.encode(call))


def _stop_words(stop: tuple[str, ...]) -> bytes:
    """As many as there is room for: the router finds all of them, and then tells the engine to stop."""
    told = stop[:STOP_WORDS]
    return _raw(codec.encode("BYTES", (*told, *[""] * (STOP_WORDS - len(told)))))


def _more(call: GenerationCall) -> Any:
    """What few requests have: inputs after the usual ones, and what the contract has no tensors for."""
    message = service_pb2.ModelInferRequest()
    raw = message.raw_input_contents
    if call.guide is not None:
        for name, text in zip(_GUIDE_INPUTS, call.guide, strict=True):
            message.inputs.add(name=name, datatype="BYTES", shape=[1, 1])
            raw.append(codec.encode("BYTES", [text]))
    if call.prompt_ids is not None:
        message.inputs.add(name="prompt_ids", datatype="INT32", shape=[1, len(call.prompt_ids)])
        raw.append(codec.encode("INT32", call.prompt_ids))
    if call.images:
        message.inputs.add(name="images", datatype="BYTES", shape=[1, len(call.images)])
        raw.append(codec.encode("BYTES", [image.data for image in call.images]))
    if call.context is not None:
        message.inputs.add(name=CONTEXT_PARAMS, datatype="UINT8", shape=[1, len(call.context)])
        raw.append(call.context)
    parameters = message.parameters
    if call.part is not None:
        parameters[REQUEST_TYPE].string_param = call.part
    if call.marked_prompt is not None:
        parameters["inflight_literal_mark"].string_param = LITERAL_MARK
    if call.logit_bias is not None:
        parameters["inflight_logit_bias"].string_param = msgspec.json.encode(call.logit_bias).decode()
    if call.min_p is not None:
        parameters["inflight_min_p"].string_param = str(call.min_p)
    if call.stop_token_ids is not None:
        parameters["inflight_stop_token_ids"].string_param = msgspec.json.encode(call.stop_token_ids).decode()
    if call.shows_special_tokens is not None:
        parameters["inflight_special_tokens"].bool_param = call.shows_special_tokens
    if call.returns_token_ids:
        parameters["inflight_token_ids"].bool_param = True
    if call.top_log_probs is not None:
        parameters["inflight_top_log_probs"].int64_param = call.top_log_probs
    if call.engine_echoes:
        parameters["inflight_echo"].bool_param = True
    if call.tier is not None:
        parameters["inflight_tier"].string_param = call.tier
    if call.shared_prefix is not None:
        parameters[SHARED_PREFIX].string_param = call.shared_prefix
    if call.trace is not None:
        call.trace.tell(parameters)
    return message


def report_request(engine: str) -> Any:
    """Asks the engine how it is. One that does not know the question takes it for a stop of nobody."""
    message = stop_request(engine, _NOBODY)
    message.parameters[REPORT].bool_param = True
    message.parameters[ROUTER].string_param = THIS_ROUTER
    return message


def configure_request(engine: str, inter_token_ms: Mapping[Tier, float | None]) -> Any:
    """Tells the engine how far apart the tokens of each tier may be; None: nothing is asked."""
    message = stop_request(engine, _NOBODY)
    wanted = {"inter_token_ms": {tier.label: inter_token_ms.get(tier) for tier in Tier}}
    message.parameters[CONFIGURE].string_param = msgspec.json.encode(wanted).decode()
    return message


def drop_request(engine: str, adapter: str) -> Any:
    """Tells the engine that it need not keep an adapter."""
    message = stop_request(engine, _NOBODY)
    message.parameters[DROP_ADAPTER].string_param = adapter
    return message


def read_engine_report(response: Any) -> EngineReport | None:
    """None where the engine says nothing of itself; raises ValueError where nobody understands it."""
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        if output.name == ENGINE_REPORT:
            return read_report(_text(raw))
    return None


def stop_request(engine: str, request_id: str) -> Any:
    """Tells the engine to end a request; the other inputs are there because the contract demands them."""
    message = _template(engine, TENSORRT_LLM, ("input_ids", "input_lengths", "request_output_len", "stop"))
    message.id = request_id
    message.raw_input_contents.extend(
        [
            codec.encode("INT32", [0]),
            codec.encode("INT32", [1]),
            codec.encode("INT32", [1]),
            codec.encode("BOOL", [True]),
        ]
    )
    return message


class Reader(Protocol):
    """Reads the responses of one stream."""

    error: str  # of the response that was one
    is_last: bool  # what was read last ends the answer

    def read(self, data: bytes) -> Any:
        """What one response says; None for an error."""


class ResponseReader:
    """Gives the inference responses themselves."""

    error = ""
    is_last = False

    def read(self, data: bytes) -> Any:
        message = service_pb2.ModelStreamInferResponse.FromString(data)
        self.error = message.error_message
        self.is_last = is_final(message.infer_response)
        return None if self.error else message.infer_response


class DeltaReader:
    """Reads deltas. All but the raw contents is the same in most responses of a stream.

    That part, the head, is known by its bytes once protobuf has read it: fields of a protobuf may be written
    one after another, so what follows a known head adds to what that says. Whatever has another head, or
    anything but raw contents behind it, is read by protobuf.
    """

    __slots__ = ("_generated", "_head", "_max_tokens", "_names", "_responses", "error", "is_last")

    def __init__(self, max_tokens: int) -> None:
        self.error = ""
        self.is_last = False
        self._max_tokens = max_tokens
        self._generated = 0
        self._head = b""
        self._names: Sequence[str] = ()
        self._responses = 0  # that protobuf has read

    def read(self, data: bytes) -> Delta | None:
        end = len(data)
        if not self._head or not 3 <= end < _TWO_BYTES or data[0] != _INFER_RESPONSE[0]:
            return self._read_by_protobuf(data)
        size, at = data[1], 2
        if size >= 128:
            size, at = size & 127 | data[2] << 7, 3
        if at + size != end or not data.startswith(self._head, at):
            return self._read_by_protobuf(data)
        at += len(self._head)
        raws = []
        while at + 1 < end and data[at] == _RAW_OUTPUT[0]:
            size, at = data[at + 1], at + 2
            if size >= 128 and at < end:
                size, at = size & 127 | data[at] << 7, at + 1
            raws.append(data[at : at + size])
            at += size
        if at != end or len(raws) != len(self._names):
            return self._read_by_protobuf(data)
        delta = _delta(self._names, raws)
        self._generated += delta.completion_tokens
        self.is_last = delta.finish is not None
        return delta

    def _read_by_protobuf(self, data: bytes) -> Delta | None:
        message = service_pb2.ModelStreamInferResponse.FromString(data)
        if message.error_message:
            self.error = message.error_message
            return None
        response = message.infer_response
        final = is_final(response)
        self._responses += 1
        self._head = b""
        if self._responses > 1 and not final:  # not for answers of one token, nor for the last
            self._head = _head(data, response.raw_output_contents)
            self._names = [output.name for output in response.outputs]
        delta = read_delta(response)
        self._generated += delta.completion_tokens
        if final and delta.finish is None:
            # NVIDIA's engine does not say why it ended.
            finish = "length" if self._generated >= self._max_tokens else "end_id"
            delta = msgspec.structs.replace(delta, finish=finish)
        self.is_last = delta.finish is not None
        return delta


def _head(data: bytes, raws: Sequence[bytes]) -> bytes:
    """The response up to its raw contents; empty where those are not all at its end."""
    size = _size(len(data) - 2) if len(data) < 130 else _size(len(data) - 3)
    tail = b"".join(_RAW_OUTPUT + _size(len(raw)) + raw for raw in raws)
    if not (data.startswith(_INFER_RESPONSE + size) and data.endswith(tail)):
        return b""
    head = data[1 + len(size) : len(data) - len(tail)]
    try:
        alone = service_pb2.ModelInferResponse.FromString(head)
    except DecodeError:
        return b""
    return b"" if alone.raw_output_contents else head


def read_delta(response: Any) -> Delta:
    """What one inference response says; outputs we have no use for are passed over."""
    return _delta([output.name for output in response.outputs], response.raw_output_contents)


def _delta(names: Sequence[str], raws: Sequence[bytes]) -> Delta:
    """From what every token has; the first, the last and logged ones have more."""
    text, completion_tokens, prompt_tokens, finish = "", 0, 0, None
    for name, raw in zip(names, raws, strict=True):
        if name == "text_output":
            one = int.from_bytes(raw[:4], "little") == len(raw) - 4
            text = raw[4:].decode("utf-8", "replace") if one else _text(raw)
        elif name == "num_output_tokens":
            (completion_tokens,) = _INT32(raw)
        elif name == "num_input_tokens":
            (prompt_tokens,) = _INT32(raw)
        elif name == "finish_reason":
            finish = _text(raw) or None
        else:
            return _full_delta(names, raws)
    return Delta(text, completion_tokens, prompt_tokens, finish)


def _full_delta(names: Sequence[str], raws: Sequence[bytes]) -> Delta:
    found = dict(zip(names, raws, strict=True))

    def number(name: str) -> int:
        return int(_INT32(found[name])[0]) if name in found else 0

    def values(dtype: str, name: str) -> Sequence[Any]:
        return codec.decode(dtype, found[name]) if name in found else ()

    times = {as_: _INT64(found[name])[0] / 1e9 for name, as_ in _ENGINE_TIMES.items() if name in found}
    characters = values("INT32", "token_characters")
    logged = (values("BYTES", "top_tokens"), values("FP32", "top_log_probs"), characters)
    return Delta(
        text=_text(found.get("text_output", b"")),
        completion_tokens=number("num_output_tokens"),
        prompt_tokens=number("num_input_tokens"),
        finish=_text(found.get("finish_reason", b"")) or None,
        engine=EngineTimes(**times) if len(times) == len(_ENGINE_TIMES) else None,
        cached_tokens=number("cached_tokens"),
        tokens=_logged(*logged) if characters else (),
        steps=values("INT64", "engine_steps"),
        token_ids=values("INT32", "token_ids"),
        context=found.get(OUT_CONTEXT_PARAMS, b""),
    )


def _text(raw: bytes) -> str:
    """A tensor of one text, or of several that are one."""
    if int.from_bytes(raw[:4], "little") == len(raw) - 4:
        return raw[4:].decode("utf-8", "replace")
    return b"".join(codec.decode("BYTES", raw)).decode("utf-8", "replace")


def _logged(
    pieces: Sequence[bytes], log_probs: Sequence[float], characters: Sequence[int]
) -> tuple[LoggedToken, ...]:
    """Rows of equal width, one a token: the token itself, then the likeliest; NaN where nothing is known."""
    width = len(pieces) // len(characters)
    tokens = []
    for row, completed in enumerate(characters):
        first, last = row * width, (row + 1) * width
        log_prob: float | None = log_probs[first]
        top: tuple[tuple[bytes, float], ...] = ()
        if math.isnan(log_probs[first]):
            log_prob = None
        else:
            top = tuple(zip(pieces[first + 1 : last], log_probs[first + 1 : last], strict=True))
        tokens.append(LoggedToken(pieces[first], log_prob, max(completed, 0), completed < 0, top))
    return tuple(tokens)


def is_final(response: Any) -> bool:
    parameters = response.parameters
    return "triton_final_response" in parameters and parameters["triton_final_response"].bool_param
