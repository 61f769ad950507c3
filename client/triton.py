"""A small client for the pipeline as Triton itself offers it, over gRPC."""

from __future__ import annotations

import contextlib
import ipaddress
import queue
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from tritonclient.grpc import (
    InferenceServerClient,
    InferInput,
)
from tritonclient.utils import InferenceServerException

_PIPELINE = "ensemble"
_ENGINE = "tensorrt_llm"
_STOP_INTERVAL_S = 0.1
_STOP_TIMEOUT_S = 5.0
_NO_SIZE_LIMIT = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
_NUMPY = {"BYTES": np.object_, "INT32": np.int32, "UINT64": np.uint64, "FP32": np.float32, "BOOL": np.bool_}
# The optional inputs of the pipeline that a caller may set.
_SAMPLING = {
    "temperature": "FP32",
    "top_k": "INT32",
    "top_p": "FP32",
    "seed": "UINT64",
    "min_tokens": "INT32",
    "repetition_penalty": "FP32",
    "presence_penalty": "FP32",
    "frequency_penalty": "FP32",
    "end_id": "INT32",
    "stop_words": "BYTES",
    "bad_words": "BYTES",
}


class GenerationFailed(Exception):
    """Triton's own words for what went wrong."""


@dataclass
class Generated:
    """A whole answer; `finish_reason` is empty when the engine does not tell it."""

    text: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str = ""


class TritonTextClient:
    """Text in, text out, over one gRPC stream; one request at a time, others wait their turn.

    Triton does not say which request an error belongs to, so requests that share a stream could not tell
    whose error it is.
    """

    def __init__(self, url: str, pipeline: str = _PIPELINE, engine: str = _ENGINE) -> None:
        self._client = InferenceServerClient(url, channel_args=_channel_args(url))
        self._pipeline = pipeline
        self._engine = engine
        self._turn = threading.Lock()
        self._holder: int | None = None
        self._arrived: queue.Queue[tuple[Any, Exception | None]] | None = None

    def generate(self, text: str, max_tokens: int, **sampling: Any) -> Generated:
        """The whole answer, in one response."""
        whole = Generated()
        for part in self._parts(text, max_tokens, sampling, stream=False):
            whole.text += part.text
            whole.prompt_tokens = part.prompt_tokens or whole.prompt_tokens
            whole.completion_tokens += part.completion_tokens
            whole.finish_reason = part.finish_reason or whole.finish_reason
        return whole

    def stream(self, text: str, max_tokens: int, **sampling: Any) -> Iterator[Generated]:
        """The answer part by part; leaving early stops the engine."""
        return self._parts(text, max_tokens, sampling, stream=True)

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> TritonTextClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _parts(
        self, text: str, max_tokens: int, sampling: dict[str, Any], *, stream: bool
    ) -> Iterator[Generated]:
        inputs = _inputs(text, max_tokens, sampling, stream=stream)
        if self._holder == threading.get_ident():
            raise RuntimeError("read the stream to its end, or close it, before the next request")
        with self._turn:
            self._holder = threading.get_ident()
            request_id = f"triton-{uuid.uuid4().hex}"
            ended = False
            try:
                self._send(self._pipeline, inputs, request_id)
                while not ended:
                    result = self._next(request_id)
                    ended = _is_final(result)
                    part = _part(result)
                    if part is not None:
                        yield part
            except GenerationFailed:
                ended = True
                self._reset()
                raise
            finally:
                if not ended:
                    self._stop(request_id)
                self._holder = None

    def _send(self, model: str, inputs: list[Any], request_id: str) -> None:
        if self._arrived is None:
            arrived: queue.Queue[tuple[Any, Exception | None]] = queue.Queue()
            self._arrived = arrived
            self._client.start_stream(callback=lambda result, error: arrived.put((result, error)))
        # A stream that has died refuses more requests; why it died waits in the queue.
        with contextlib.suppress(InferenceServerException):
            self._client.async_stream_infer(
                model, inputs, request_id=request_id, enable_empty_final_response=True
            )

    def _next(self, request_id: str, timeout_s: float | None = None) -> Any:
        """The pipeline's next response to this request."""
        assert self._arrived is not None
        while True:
            result, error = self._arrived.get(timeout=timeout_s)
            if error is not None:
                raise GenerationFailed(str(error)) from error
            response = result.get_response()
            if (response.model_name, response.id) == (self._pipeline, request_id):
                return result

    def _stop(self, request_id: str) -> None:
        """Tells the engine to stop until the request has ended: a stop that overtakes it is lost."""
        inputs = [
            _tensor("input_ids", "INT32", [0]),
            _tensor("input_lengths", "INT32", [1]),
            _tensor("request_output_len", "INT32", [1]),
            _tensor("stop", "BOOL", [True]),
        ]
        deadline_s = time.monotonic() + _STOP_TIMEOUT_S
        try:
            while time.monotonic() < deadline_s:
                self._send(self._engine, inputs, request_id)
                with contextlib.suppress(queue.Empty):
                    while not _is_final(self._next(request_id, _STOP_INTERVAL_S)):
                        pass
                    return
        except GenerationFailed:
            return
        finally:
            self._reset()

    def _reset(self) -> None:
        """Forgets the stream, with whatever else it may still bring."""
        self._client.stop_stream(cancel_requests=True)
        self._arrived = None


def _channel_args(url: str) -> list[tuple[str, int]] | None:
    """None leaves everything to tritonclient; a list replaces all its options."""
    host = url.rpartition(":")[0].strip("[]")
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    # gRPC would ask the proxy of the environment for this machine's own address too.
    return [*_NO_SIZE_LIMIT, ("grpc.enable_http_proxy", 0)] if loopback else None


def _inputs(text: str, max_tokens: int, sampling: dict[str, Any], *, stream: bool) -> list[Any]:
    unknown = sorted(set(sampling) - set(_SAMPLING))
    if unknown:
        raise TypeError(f"no such option: {', '.join(unknown)}; allowed are {', '.join(_SAMPLING)}")
    optional = [
        _tensor(name, _SAMPLING[name], value if isinstance(value, (list, tuple)) else [value])
        for name, value in sampling.items()
    ]
    return [
        _tensor("text_input", "BYTES", [text]),
        _tensor("max_tokens", "INT32", [max_tokens]),
        _tensor("stream", "BOOL", [stream]),
        _tensor("exclude_input_in_output", "BOOL", [True]),
        _tensor("return_num_input_tokens", "BOOL", [True]),
        _tensor("return_num_output_tokens", "BOOL", [True]),
        *optional,
    ]


def _tensor(name: str, dtype: str, values: Sequence[Any]) -> Any:
    elements = [value.encode() if isinstance(value, str) else value for value in values]
    tensor = InferInput(name, [1, len(elements)], dtype)
    tensor.set_data_from_numpy(np.array([elements], dtype=_NUMPY[dtype]))
    return tensor


def _is_final(result: Any) -> bool:
    parameters = result.get_response().parameters
    return "triton_final_response" in parameters and parameters["triton_final_response"].bool_param


def _part(result: Any) -> Generated | None:
    """What one response says; None for the empty one that only marks the end."""
    text = result.as_numpy("text_output")
    if text is None:
        return None
    finish = result.as_numpy("finish_reason")
    return Generated(
        b"".join(text.flatten()).decode(),
        _number(result, "num_input_tokens"),
        _number(result, "num_output_tokens"),
        "" if finish is None else b"".join(finish.flatten()).decode(),
    )


def _number(result: Any, name: str) -> int:
    values = result.as_numpy(name)
    return 0 if values is None else int(values.flatten()[0])
