"""Speaks Triton's gRPC as far as the router needs it, at a fraction of Triton's cost.

Usage: python -m benchmarks.router.triton_stub PORT
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, cast

import uvloop
from tritonclient.grpc import service_pb2

from benchmarks.router.pacing import Pacer
from benchmarks.router.words import PROMPT_TOKENS, word
from python_backend.wire import codec
from router.grpc import frames
from router.grpc.call import PREFIX_BYTES, prefixed
from router.grpc.sender import literal

_WINDOW_BYTES = 1 << 30
_HELLO = frames.settings(
    {frames.Setting.HEADER_TABLE_SIZE: 0, frames.Setting.INITIAL_WINDOW_SIZE: _WINDOW_BYTES}
) + frames.window_update(0, _WINDOW_BYTES)
_HEADERS = b"\x88" + literal("content-type", "application/grpc")
_TRAILERS = literal("grpc-status", "0")
_PATH = b"GRPCInferenceService/"


def message(text: str, last: bool) -> bytes:
    """One response of the ensemble, with the outputs that the real one has."""
    response = service_pb2.ModelInferResponse(model_name="ensemble", model_version="1", id="chatcmpl-0")
    outputs: list[tuple[str, str, list[Any]]] = [
        ("text_output", "BYTES", [text]),
        ("num_input_tokens", "INT32", [PROMPT_TOKENS]),
        ("num_output_tokens", "INT32", [1]),
    ]
    if last:
        outputs.append(("finish_reason", "BYTES", ["length"]))
    for name, dtype, values in outputs:
        response.outputs.add(name=name, datatype=dtype, shape=[1, 1])
        response.raw_output_contents.append(codec.encode(dtype, values))
    response.parameters["triton_final_response"].bool_param = last
    wrapped = service_pb2.ModelStreamInferResponse(infer_response=response)
    return cast("bytes", wrapped.SerializeToString())


_READY = prefixed(service_pb2.ModelReadyResponse(ready=True).SerializeToString())
_known: dict[tuple[int, bool], bytes] = {}


def chunk(number: int, last: bool) -> bytes:
    key = (number, last)
    if key not in _known:
        _known[key] = prefixed(message(word(number), last))
    return _known[key]


class StreamAnswer:
    def __init__(self, connection: TritonStub, stream_id: int, total: int) -> None:
        self._connection = connection
        self._stream_id = stream_id
        self.total = total
        self._sent = 0

    def play(self, tokens: int) -> bool:
        stream_id = self._stream_id
        if stream_id not in self._connection.running:
            return False
        out = []
        if self._sent == 0:
            out.append(frames.frame(frames.HEADERS, frames.END_HEADERS, stream_id, _HEADERS))
        for _ in range(min(tokens, self.total - self._sent)):
            self._sent += 1
            payload = chunk(self._sent, self._sent == self.total)
            out.append(frames.frame(frames.DATA, 0, stream_id, payload))
        more = self._sent < self.total
        if not more:
            end = frames.END_HEADERS | frames.END_STREAM
            out.append(frames.frame(frames.HEADERS, end, stream_id, _TRAILERS))
            del self._connection.running[stream_id]
        self._connection.transport.write(b"".join(out))
        return more


class TritonStub(asyncio.Protocol):
    """One connection; requests are kept until they are whole, windows are as good as endless."""

    def __init__(self, pacer: Pacer) -> None:
        self._pacer = pacer
        self._rest = b""
        self._greeted = False
        self.running: dict[int, bytearray] = {}
        self._unary: set[int] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(_HELLO)

    def connection_lost(self, exc: Exception | None) -> None:
        self.running.clear()

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        at = 0
        if not self._greeted and len(data) >= len(frames.PREFACE):
            self._greeted = True
            at = len(frames.PREFACE)
        received = 0
        while self._greeted and len(data) - at >= frames.HEAD_BYTES:
            high, low, kind, flags, stream_id = frames.HEAD.unpack_from(data, at)
            stop = at + frames.HEAD_BYTES + (high << 8 | low)
            if stop > len(data):
                break
            if kind == frames.DATA:
                received += stop - at
            self._take(kind, flags, stream_id, data[at + frames.HEAD_BYTES : stop])
            at = stop
        self._rest = data[at:]
        if received:
            self.transport.write(frames.window_update(0, received))

    def _take(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == frames.HEADERS:
            self.running[stream_id] = bytearray()
            if _PATH + b"ModelStreamInfer" not in payload:
                self._unary.add(stream_id)
        elif kind == frames.DATA and stream_id in self.running:
            self.running[stream_id] += payload
            if flags & frames.END_STREAM:
                self._answer(stream_id)
        elif kind == frames.RST_STREAM:
            self.running.pop(stream_id, None)
            self._unary.discard(stream_id)
        elif kind == frames.PING and not flags & frames.ACK:
            self.transport.write(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif kind == frames.SETTINGS and not flags & frames.ACK:
            self.transport.write(frames.frame(frames.SETTINGS, frames.ACK, 0))

    def _answer(self, stream_id: int) -> None:
        if stream_id in self._unary:
            self._unary.discard(stream_id)
            del self.running[stream_id]
            end = frames.END_HEADERS | frames.END_STREAM
            self.transport.write(
                frames.frame(frames.HEADERS, frames.END_HEADERS, stream_id, _HEADERS)
                + frames.frame(frames.DATA, 0, stream_id, _READY)
                + frames.frame(frames.HEADERS, end, stream_id, _TRAILERS)
            )
            return
        request = service_pb2.ModelInferRequest.FromString(bytes(self.running[stream_id])[PREFIX_BYTES:])
        self._pacer.add(StreamAnswer(self, stream_id, _max_tokens(request)))


def _max_tokens(request: Any) -> int:
    for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        if tensor.name == "max_tokens":
            return int(codec.decode("INT32", raw)[0])
    return 1  # a stop: its answer is one final response


async def serve(port: int) -> None:
    pacer = Pacer()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: TritonStub(pacer), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
