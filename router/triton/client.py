"""Talks to Triton over gRPC: one stream per request, a stop by request id, readiness."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.generation import Delta, Failure, GenerationCall
from router.grpc.channel import Channel
from router.grpc.status import GrpcError, StatusCode
from router.triton.failures import TritonError, cut_error, from_status, from_text
from router.triton.messages import DeltaReader, GenerateRequests, ResponseReader, stop_request
from router.triton.protocol import service_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from router.grpc.call import Call
    from router.grpc.target import ClientTls
    from router.triton.messages import Reader

log = logging.getLogger(__name__)

_SERVICE = "/inference.GRPCInferenceService/"
_STREAM_INFER = _SERVICE + "ModelStreamInfer"
_READY_TIMEOUT_S = 2.0
_STOP_INTERVAL_S = 0.1
_read_response: Callable[[bytes], Any] = service_pb2.ModelStreamInferResponse.FromString


class InferStream:
    """The answer to one ModelStreamInfer: protobufs in order, then the end or a GrpcError."""

    __slots__ = ("call",)

    def __init__(self, call: Call) -> None:
        self.call = call

    async def read(self) -> Any:
        """The next response, or None after the last."""
        data = await self.call.read()
        return None if data is None else _read_response(data)

    def cancel(self) -> None:
        self.call.cancel()

    def __aiter__(self) -> InferStream:
        return self

    async def __anext__(self) -> Any:
        message = await self.read()
        if message is None:
            raise StopAsyncIteration
        return message


class TritonConnection:
    """The channel to one Triton server, and the stops that are still being delivered."""

    def __init__(
        self,
        url: str,
        stop_timeout_s: float = 5.0,
        metadata: Mapping[str, str] | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        self.stop_timeout_s = stop_timeout_s
        self._channel = Channel(url, metadata, tls=tls)
        # As `infer`, for who has the bytes of the request and reads those of the answer.
        self.infer_bytes = partial(self._channel.call, _STREAM_INFER)
        self._stopping: set[asyncio.Task[None]] = set()

    def infer(self, request: Any, timeout_s: float | None = None) -> InferStream:
        """Sends one request on a stream of its own, which the server sees half closed."""
        return InferStream(self.infer_bytes(request.SerializeToString(), timeout_s))

    def begin_once(self, request: Any, timeout_s: float | None, on_end: Callable[[], None]) -> Call:
        """ModelInfer, begun: for who may have to give it up; `read_once` has its answer."""
        return self._channel.call(_SERVICE + "ModelInfer", request.SerializeToString(), timeout_s, on_end)

    async def infer_once(self, request: Any, timeout_s: float | None = None) -> Any:
        """ModelInfer: one request, one response."""
        return await self.call("ModelInfer", request, service_pb2.ModelInferResponse, timeout_s)

    async def call(
        self, method: str, request: Any, response_type: Any, timeout_s: float | None = None
    ) -> Any:
        """Any other method with one request and one response, by its name; raises GrpcError."""
        data = await self._channel.call_once(_SERVICE + method, request.SerializeToString(), timeout_s)
        return response_type.FromString(data)

    async def ready(self, model: str) -> bool:
        request = service_pb2.ModelReadyRequest(name=model)
        try:
            answer = await self.call("ModelReady", request, service_pb2.ModelReadyResponse, _READY_TIMEOUT_S)
        except GrpcError:
            return False
        return bool(answer.ready)

    def run_stop(self, delivery: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(delivery)
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    async def close(self) -> None:
        if self._stopping:
            await asyncio.wait(self._stopping, timeout=2 * self.stop_timeout_s)
        await self._channel.close()


async def read_once(call: Call) -> Any:
    """The one response to a ModelInfer; raises GrpcError."""
    try:
        data = await call.read()
        if data is None or await call.read() is not None:
            raise GrpcError(StatusCode.INTERNAL, "the server did not answer with exactly one message")
    finally:
        call.cancel()
    return service_pb2.ModelInferResponse.FromString(data)


class TritonPipeline:
    """One ensemble and the engine model inside it."""

    def __init__(self, connection: TritonConnection, name: str, engine: str, adapter: str = "") -> None:
        self._connection = connection
        self._name = name
        self._engine = engine
        self._requests = GenerateRequests(name, adapter)

    def generate(self, call: GenerationCall) -> TritonGeneration:
        return TritonGeneration(self._connection, self._engine, self._requests.encode(call), call)

    async def ready(self) -> bool:
        return await self._connection.ready(self._name)


class TritonGeneration:
    """One ModelStreamInfer call.

    Cancelling the call would end our view of the request and leave the engine running, because Triton does
    not pass a cancel through an ensemble. So a stop goes to the engine by request id, again and again
    because one that overtakes its request is lost, until this stream has ended. Only when that takes too
    long is the call given up.
    """

    # Where there was nothing to take, done when there is; whoever is cancelled meanwhile must `abandon` this.
    more: Callable[[], asyncio.Future[None]]

    def __init__(
        self, connection: TritonConnection, engine: str, request: bytes, call: GenerationCall
    ) -> None:
        self._connection = connection
        self._engine = engine
        self._request = request
        self._request_id = call.request_id
        self._triton_call: Call | None = None
        self._ended = False  # Triton is done with the request; some of it may be unread
        self._when_ended: asyncio.Event | None = None
        self._over = False  # all of it was read, or nobody ever will
        self._answered = False  # the finish or the error is out; only the end of the stream is left
        self._stop_asked = False
        self._given_up = False
        self._cut = False
        self._deadline: asyncio.TimerHandle | None = None
        self._reader: Reader = DeltaReader(call.max_tokens)
        self.on_end: Callable[[], None] | None = None  # called once, when Triton is done with the request

    def __aiter__(self) -> TritonGeneration:
        return self

    async def __anext__(self) -> Any:
        while (delta := self.take()) is None:
            try:
                await self.more()
            except asyncio.CancelledError:
                self.abandon()
                raise
        return delta

    def take(self) -> Any:
        """The next delta, None where `more` has to be awaited first; StopAsyncIteration after the last."""
        if self._over:
            raise StopAsyncIteration
        call = self._triton_call
        if call is None:
            if self._stop_asked:
                self._over = True
                return Delta("", finish="cancelled")
            call = self.begin()
            if not call.ended:
                return None
        reader = self._reader
        while call.messages and (data := call.take()) is not None:
            item = reader.read(data)
            if item is None:
                self._expect_end()
                raise from_text(reader.error, self._request_id)
            if not self._answered:
                if reader.is_last:
                    self._expect_end()
                return item
        if call.ended:
            self._over = True
            raise self._outcome(call.error)
        return None

    def begin(self) -> Call:
        """Once; for who does not take at once, else the first `take` does it."""
        call = self._triton_call = self._connection.infer_bytes(self._request, on_end=self._end)
        self.more = call.arrival
        return call

    def abandon(self) -> None:
        """Nobody reads on. Triton must be able to come to the end, where a stop sees it."""
        self._over = True
        if self._triton_call is not None:
            self._triton_call.discard()

    def _outcome(self, error: GrpcError | None) -> Exception:
        """What the end of the stream is for the reader."""
        if self._answered:
            return StopAsyncIteration()
        if error is None:
            message = "the stream ended before the answer did"
            return TritonError(ErrorKind.ENGINE_FAILED, message, Failure.ENGINE)
        if self._cut:
            return cut_error()
        if self._given_up:
            return InflightError(ErrorKind.CANCELLED, "the engine did not stop in time")
        failure = from_status(error, self._request_id)
        failure.__cause__ = error
        return failure

    def _expect_end(self) -> None:
        self._answered = True
        if not self._ended:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(self._connection.stop_timeout_s, self._give_up)

    def _end(self) -> None:
        self._ended = True
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None  # it holds this generation
        if self._when_ended is not None:
            self._when_ended.set()
        if self.on_end is not None:
            on_end, self.on_end = self.on_end, None
            on_end()

    def _give_up(self) -> None:
        assert self._triton_call is not None
        self._given_up = True
        self._triton_call.cancel()

    def cut(self) -> None:
        """Gives it up and waits for nobody, for a server that will not answer; the reader gets an error."""
        if self._triton_call is not None and not self._ended:
            self._cut = True
            self._triton_call.cancel()
            if self._engine:
                self._connection.run_stop(self._stop_what_lives())

    async def _stop_what_lives(self) -> None:
        """It may be another step that died: the engine would go on for nobody."""
        request = stop_request(self._engine, self._request_id)
        with contextlib.suppress(GrpcError):
            async for _ in self._connection.infer(request, timeout_s=self._connection.stop_timeout_s):
                pass

    def stop(self) -> None:
        if not (self._stop_asked or self._answered or self._ended):
            self._stop_asked = True
            if self._triton_call is not None:
                self._when_ended = asyncio.Event()
                self._connection.run_stop(self._deliver_stop(self._when_ended))

    async def _deliver_stop(self, when_ended: asyncio.Event) -> None:
        request = stop_request(self._engine, self._request_id)
        limit_s = self._connection.stop_timeout_s
        give_up_s = time.monotonic() + limit_s
        interval_s = _STOP_INTERVAL_S
        while time.monotonic() < give_up_s:
            try:
                async for _ in self._connection.infer(request, timeout_s=limit_s):
                    pass
            except GrpcError as error:
                log.warning("%s: the stop request was not delivered: %s", request.id, error)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(when_ended.wait(), interval_s)
                return
            interval_s *= 2
        log.error("%s: the engine did not stop within %.1f s", request.id, limit_s)
        self._give_up()


class RelayedGeneration(TritonGeneration):
    """Gives the responses themselves: with several rows or sequences, one that finishes is not the last."""

    def __init__(
        self, connection: TritonConnection, engine: str, request: bytes, call: GenerationCall
    ) -> None:
        super().__init__(connection, engine, request, call)
        self._reader = ResponseReader()

    def _outcome(self, error: GrpcError | None) -> Exception:
        if error is not None and error.code is StatusCode.RESOURCE_EXHAUSTED and not self._answered:
            message = "the answer is too large to be forwarded: request fewer tokens, or no logits"
            return InflightError(ErrorKind.INVALID_REQUEST, message)
        return super()._outcome(error)
