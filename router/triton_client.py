"""Talks to Triton over gRPC: one stream per request, a stop by request id, readiness."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any

import grpc
import msgspec
from tritonclient.grpc import service_pb2

from python_backend.wire.errors import ErrorKind, InflightError
from router.pipeline import Delta, GenerationCall
from router.triton_messages import GenerateRequests, is_final, read_delta, stop_request

if TYPE_CHECKING:
    from collections.abc import Coroutine

log = logging.getLogger(__name__)

_MAX_MESSAGE_BYTES = 64 << 20
_CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    # Triton closes a connection that pings more often than every 300 s without data.
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # A restarted Triton is found again within a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
]
_READY_TIMEOUT_S = 2.0
_STOP_INTERVAL_S = 0.1
_UNAVAILABLE = "the model cannot answer at the moment"
_END_OF_STREAM: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in the stubs


class TritonConnection:
    """The channel to one Triton server, and the stops that are still being delivered."""

    def __init__(self, url: str, stop_timeout_s: float = 5.0) -> None:
        self.stop_timeout_s = stop_timeout_s
        self._channel = grpc.aio.insecure_channel(url, options=_CHANNEL_OPTIONS)
        # A stream of one request looks the same to the server as a bidirectional one that was half closed,
        # and costs the client one operation instead of three.
        self._infer = self._channel.unary_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )
        self._ready = self._channel.unary_unary(
            "/inference.GRPCInferenceService/ModelReady",
            request_serializer=service_pb2.ModelReadyRequest.SerializeToString,
            response_deserializer=service_pb2.ModelReadyResponse.FromString,
        )
        self._stopping: set[asyncio.Task[None]] = set()

    def infer(self, request: Any, timeout_s: float | None = None) -> Any:
        return self._infer(request, timeout=timeout_s)

    async def ready(self, model: str) -> bool:
        request = service_pb2.ModelReadyRequest(name=model)
        try:
            answer = await self._ready(request, timeout=_READY_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.ready)

    def run_stop(self, delivery: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(delivery)
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    async def close(self) -> None:
        if self._stopping:
            await asyncio.wait(self._stopping, timeout=2 * self.stop_timeout_s)
        await self._channel.close(None)


class TritonPipeline:
    """One ensemble and the engine model inside it."""

    def __init__(self, connection: TritonConnection, name: str, engine: str) -> None:
        self._connection = connection
        self._name = name
        self._engine = engine
        self._requests = GenerateRequests(name)

    def generate(self, call: GenerationCall) -> TritonGeneration:
        return TritonGeneration(self._connection, self._engine, self._requests.build(call), call.max_tokens)

    async def ready(self) -> bool:
        return await self._connection.ready(self._name)


class TritonGeneration:
    """One ModelStreamInfer call.

    Cancelling the call would end our view of the request and leave the engine running, because Triton does
    not pass a cancel through an ensemble. So a stop goes to the engine by request id, again and again
    because one that overtakes its request is lost, until this stream has ended. Only when that takes too
    long is the call given up.
    """

    def __init__(self, connection: TritonConnection, engine: str, request: Any, max_tokens: int) -> None:
        self._connection = connection
        self._engine = engine
        self._request = request
        self._max_tokens = max_tokens
        self._call: Any = None
        self._ended = asyncio.Event()
        self._answered = False  # the finish or the error is out; only the end of the stream is left
        self._stop_asked = False
        self._given_up = False
        self._deadline: asyncio.TimerHandle | None = None
        self._generated = 0

    def __aiter__(self) -> TritonGeneration:
        return self

    async def __anext__(self) -> Delta:
        if self._ended.is_set():
            raise StopAsyncIteration
        if self._call is None:
            if self._stop_asked:
                self._end()
                return Delta("", finish="cancelled")
            self._call = self._connection.infer(self._request)
        while (message := await self._read()) is not None:
            if message.error_message:
                self._expect_end()
                raise _from_triton(message.error_message, self._request.id)
            if not self._answered:
                return self._delta(message.infer_response)
        self._end()
        if not self._answered:
            raise InflightError(ErrorKind.ENGINE_FAILED, "the stream ended before the answer did")
        raise StopAsyncIteration

    async def _read(self) -> Any:
        """The next message, or None at the end of the stream."""
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            self._end()
            if self._answered:
                return None
            raise _from_status(error, self._request.id) from error
        except asyncio.CancelledError:
            self._end()
            if not self._given_up:
                raise
            if self._answered:
                return None
            raise InflightError(ErrorKind.CANCELLED, "the engine did not stop in time") from None
        return None if message is _END_OF_STREAM else message

    def _delta(self, response: Any) -> Delta:
        delta = read_delta(response)
        self._generated += delta.completion_tokens
        if delta.finish is None and is_final(response):
            # NVIDIA's engine does not say why it ended.
            finish = "length" if self._generated >= self._max_tokens else "end_id"
            delta = msgspec.structs.replace(delta, finish=finish)
        if delta.finish is not None:
            self._expect_end()
        return delta

    def _expect_end(self) -> None:
        self._answered = True
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self._connection.stop_timeout_s, self._give_up)

    def _end(self) -> None:
        self._ended.set()
        if self._deadline is not None:
            self._deadline.cancel()

    def _give_up(self) -> None:
        self._given_up = True
        self._call.cancel()

    def stop(self) -> None:
        if not (self._stop_asked or self._answered or self._ended.is_set()):
            self._stop_asked = True
            if self._call is not None:
                self._connection.run_stop(self._deliver_stop())

    async def _deliver_stop(self) -> None:
        request = stop_request(self._engine, self._request.id)
        limit_s = self._connection.stop_timeout_s
        give_up_s = time.monotonic() + limit_s
        interval_s = _STOP_INTERVAL_S
        while time.monotonic() < give_up_s:
            try:
                async for _ in self._connection.infer(request, timeout_s=limit_s):
                    pass
            except grpc.aio.AioRpcError as error:
                log.warning("%s: the stop was not delivered: %s", request.id, error.code())
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ended.wait(), interval_s)
                return
            interval_s *= 2
        log.error("%s: the engine did not stop within %.1f s", request.id, limit_s)
        self._give_up()


def _from_status(error: grpc.aio.AioRpcError, request_id: str) -> InflightError:
    if error.code() == grpc.StatusCode.UNAVAILABLE:
        log.warning("%s: Triton is not available: %s", request_id, error.details())
        return InflightError(ErrorKind.ENGINE_FAILED, _UNAVAILABLE)
    return _from_triton(error.details() or str(error.code()), request_id)


def _from_triton(text: str, request_id: str) -> InflightError:
    """What a client may know of Triton's error; names of stubs, regions and paths stay in the log."""
    error = InflightError.from_text(text)
    if error.kind.is_callers_fault and error.kind is not ErrorKind.MODEL_NOT_FOUND:
        return error
    log.warning("%s: Triton answered: %s", request_id, text)
    # The router names only models it serves, so one that Triton does not know is not loaded.
    kind = ErrorKind.ENGINE_FAILED if error.kind is ErrorKind.MODEL_NOT_FOUND else error.kind
    return InflightError(kind, _UNAVAILABLE)
