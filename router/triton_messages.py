"""Builds the protobufs that Triton gets and reads the ones it sends, by the tables of `wire`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
from tritonclient.grpc import service_pb2

from python_backend.wire import codec
from python_backend.wire.tensors import ENSEMBLE, TENSORRT_LLM, ModelContract
from router.pipeline import Delta, LoggedToken
from router.stages import EngineTimes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.pipeline import GenerationCall

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


class GenerateRequests:
    """Requests to one pipeline; what never changes is built once."""

    def __init__(self, pipeline: str) -> None:
        self._template = _template(pipeline, ENSEMBLE, _INPUTS)
        self._template.parameters["triton_enable_empty_final_response"].bool_param = True
        self._without_end = _template(pipeline, ENSEMBLE, (*_INPUTS, "end_id"))
        self._without_end.parameters["triton_enable_empty_final_response"].bool_param = True
        self._dtypes = [ENSEMBLE.input(name).dtype for name in _INPUTS]

    def build(self, call: GenerationCall) -> Any:
        message = service_pb2.ModelInferRequest()
        message.CopyFrom(self._without_end if call.ignore_eos else self._template)
        message.id = call.request_id
        message.parameters["tenant"].string_param = call.tenant
        message.parameters["add_special_tokens"].bool_param = call.add_special_tokens
        stop_words = (*call.stop, *[""] * (STOP_WORDS - len(call.stop)))
        values: list[Sequence[Any]] = [
            [call.prompt],
            [call.max_tokens],
            stop_words,
            [call.top_k],
            [call.top_p],
            [call.temperature],
            [call.repetition_penalty],
            [call.min_tokens],
            [call.presence_penalty],
            [call.frequency_penalty],
            [call.seed],
            [True],
            [True],
            [True],
            [True],
            [True],
        ]
        raw = message.raw_input_contents
        raw.extend(map(codec.encode, self._dtypes, values))
        if call.ignore_eos:
            raw.append(codec.encode("INT32", [_NO_END_ID]))
        if call.guide is not None:
            for name, text in zip(_GUIDE_INPUTS, call.guide, strict=True):
                message.inputs.add(name=name, datatype="BYTES", shape=[1, 1])
                raw.append(codec.encode("BYTES", [text]))
        if call.prompt_ids is not None:
            message.inputs.add(name="prompt_ids", datatype="INT32", shape=[1, len(call.prompt_ids)])
            raw.append(codec.encode("INT32", call.prompt_ids))
        _add_parameters(message.parameters, call)
        return message


def _add_parameters(parameters: Any, call: GenerationCall) -> None:
    """What the contract has no tensors for."""
    if call.logit_bias is not None:
        parameters["inflight_logit_bias"].string_param = msgspec.json.encode(call.logit_bias).decode()
    if call.top_log_probs is not None:
        parameters["inflight_top_log_probs"].int64_param = call.top_log_probs
    if call.engine_echoes:
        parameters["inflight_echo"].bool_param = True
    if call.tier is not None:
        parameters["inflight_tier"].string_param = call.tier


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


def read_delta(response: Any) -> Delta:
    """What one inference response says; outputs we have no use for are passed over."""
    text, completion_tokens, prompt_tokens, finish, cached_tokens = "", 0, 0, None, 0
    log_probs: Sequence[float] = ()
    pieces: Sequence[bytes] = ()
    characters: Sequence[int] = ()
    times: dict[str, float] = {}
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        name = output.name
        if name == "text_output":
            text = b"".join(codec.decode("BYTES", raw)).decode("utf-8", "replace")
        elif name == "num_output_tokens":
            completion_tokens = codec.decode("INT32", raw)[0]
        elif name == "num_input_tokens":
            prompt_tokens = codec.decode("INT32", raw)[0]
        elif name == "finish_reason":
            finish = codec.decode("BYTES", raw)[0].decode() or None
        elif name in _ENGINE_TIMES:
            times[_ENGINE_TIMES[name]] = codec.decode("INT64", raw)[0] / 1e9
        elif name == "cached_tokens":
            cached_tokens = codec.decode("INT32", raw)[0]
        elif name == "top_log_probs":
            log_probs = codec.decode("FP32", raw)
        elif name == "top_tokens":
            pieces = codec.decode("BYTES", raw)
        elif name == "token_characters":
            characters = codec.decode("INT32", raw)
    engine = EngineTimes(**times) if len(times) == len(_ENGINE_TIMES) else None
    tokens = _logged(pieces, log_probs, characters) if characters else ()
    return Delta(text, completion_tokens, prompt_tokens, finish, engine, cached_tokens, tokens)


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
