"""gRPC calls and the requests in them: how clients leave, answers are sent and errors reported."""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc

from python_backend.wire.errors import ErrorKind, InflightError
from router.kserve.answers import Answer, join
from router.kserve.messages import FINAL, write_response
from router.triton.protocol import service_pb2

if TYPE_CHECKING:
    from router.kserve.offers import Asked


_CODES = {
    ErrorKind.INVALID_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorKind.CONTEXT_LENGTH_EXCEEDED: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorKind.TOO_LARGE: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorKind.CONTENT_FILTER: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorKind.CONFLICT: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorKind.UNSUPPORTED: grpc.StatusCode.UNIMPLEMENTED,
    ErrorKind.MODEL_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorKind.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorKind.INVALID_KEY: grpc.StatusCode.UNAUTHENTICATED,
    ErrorKind.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    ErrorKind.RATE_LIMITED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorKind.QUOTA: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorKind.CANCELLED: grpc.StatusCode.CANCELLED,
    ErrorKind.OVERLOADED: grpc.StatusCode.UNAVAILABLE,
    ErrorKind.ENGINE_FAILED: grpc.StatusCode.UNAVAILABLE,
    ErrorKind.INTERNAL: grpc.StatusCode.INTERNAL,
}
Status = tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]


def status_of(error: Exception, request_id: str) -> Status:
    """Code, sentence and trailing metadata; what is ours to mend is told without details."""
    trailers: tuple[tuple[str, str], ...] = (("x-request-id", request_id),)
    if not isinstance(error, InflightError) or error.kind is ErrorKind.INTERNAL:
        message = f"the server failed to answer this request; its id is {request_id}"
        return grpc.StatusCode.INTERNAL, message, trailers
    retry_after_s = error.retry_after_s
    if retry_after_s is None and _CODES[error.kind] is grpc.StatusCode.UNAVAILABLE:
        # Spread, so that clients refused together do not come back together.
        retry_after_s = random.randint(1, 3)
    if retry_after_s is not None:
        trailers = (*trailers, ("retry-after", str(math.ceil(retry_after_s))))
    return _CODES[error.kind], error.message, trailers


def http_status(error: BaseException | None) -> int:
    """For the log and the metrics, where HTTP and gRPC are counted together."""
    if error is None:
        return 200
    if isinstance(error, asyncio.CancelledError):
        return ErrorKind.CANCELLED.http_status
    return error.kind.http_status if isinstance(error, InflightError) else 500


def grpc_code(error: BaseException | None) -> int:
    """The number that the client got."""
    if error is None:
        return 0
    code = status_of(error, "")[0] if isinstance(error, Exception) else grpc.StatusCode.CANCELLED
    number: int = code.value[0]
    return number


def error_kind(error: BaseException | None) -> str:
    if error is None:
        return ""
    return error.kind.label if isinstance(error, InflightError) else ErrorKind.INTERNAL.label


class Departure:
    """Tells who waits for it that the client has left, once."""

    def __init__(self) -> None:
        self.gone = False
        self._callbacks: list[Callable[[], None]] = []

    def on_leave(self, callback: Callable[[], None]) -> None:
        if self.gone:
            callback()
        else:
            self._callbacks.append(callback)

    def leave(self) -> None:
        self.gone = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


class SingleAnswer:
    """The answer to ModelInfer: everything, joined."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._answers: list[Answer] = []
        self.response: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def take(self, answer: Answer) -> None:
        self._answers.append(answer)
        if answer.final and not self.response.done():
            self.response.set_result(write_response(self._asked, join(self._answers)))

    def fail(self, error: Exception) -> None:
        if not self.response.done():
            self.response.set_exception(error)
            self.response.exception()  # the client may be gone: then nobody looks


class Outbox:
    """Messages on their way to one client; senders wait while it is full, until it is closed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._messages: deque[Any] = deque()
        self._room, self._news = asyncio.Event(), asyncio.Event()
        self.closed = False

    async def put(self, message: Any) -> None:
        while len(self._messages) >= self._most and not self.closed:
            self._room.clear()
            await self._room.wait()
        self.put_now(message)

    def put_now(self, message: Any) -> None:
        if not self.closed:
            self._messages.append(message)
            self._news.set()

    async def get(self) -> Any:
        """None when it is closed and empty."""
        while not self._messages:
            if self.closed:
                return None
            self._news.clear()
            await self._news.wait()
        message = self._messages.popleft()
        self._room.set()
        return message

    def close(self) -> None:
        self.closed = True
        self._room.set()
        self._news.set()


class StreamedAnswer:
    """The answers to one request of a stream that others share; errors go in the stream too."""

    def __init__(self, outbox: Outbox, asked: Asked) -> None:
        self._outbox = outbox
        self._asked = asked
        self._done = False

    async def take(self, answer: Answer) -> None:
        self._done = answer.final
        if not answer.outputs and not self._asked.parameters.empty_final:
            return
        response = write_response(self._asked, answer.outputs)
        response.parameters[FINAL].bool_param = answer.final
        await self._outbox.put(service_pb2.ModelStreamInferResponse(infer_response=response))

    def fail(self, error: Exception) -> None:
        if not self._done:
            self._done = True
            self._outbox.put_now(error_message(error, self._asked.client_id))


def error_message(error: Exception, client_id: str) -> Any:
    """Such a message has no code, so the kind is at the head of the text, as in the engine's own errors."""
    if not isinstance(error, InflightError) or error.kind is ErrorKind.INTERNAL:
        error = InflightError(ErrorKind.INTERNAL, "the server failed to answer this request")
    text = error.to_text()
    if error.retry_after_s is not None:
        text += f"; try again in {math.ceil(error.retry_after_s)} s"
    message = service_pb2.ModelStreamInferResponse(error_message=text)
    message.infer_response.id = client_id
    return message


_REQUESTS_AT_ONCE = 64
_OUTBOX_MESSAGES = 16
SEND_TIMEOUT_S = 30.0


# Starts one request, whose answers go to the outbox; raises what is wrong with it.
Start = Callable[[Any, Outbox, Departure], Awaitable["asyncio.Task[None]"]]


class Stream:
    """One ModelStreamInfer: requests are read as they come and run side by side, answers share the outbox.

    Ends when the client has sent its last request and has every answer, or when it has left.
    """

    def __init__(self, start: Start, context: Any, send_timeout_s: float = SEND_TIMEOUT_S) -> None:
        self._start = start
        self._context = context
        self._send_timeout_s = send_timeout_s
        self._gave_up = False
        self._outbox = Outbox(_OUTBOX_MESSAGES)
        self._running: dict[asyncio.Task[None], Departure] = {}

    async def serve(self, requests: AsyncIterator[Any]) -> None:
        reading = asyncio.get_running_loop().create_task(self._read(requests))
        try:
            while (message := await self._outbox.get()) is not None:
                await self._send(message)
        finally:
            reading.cancel()
            self._outbox.close()
            for departure in list(self._running.values()):
                departure.leave()

    async def _read(self, requests: AsyncIterator[Any]) -> None:
        try:
            async for request in requests:
                while len(self._running) >= _REQUESTS_AT_ONCE:
                    await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                try:
                    departure = Departure()
                    task = await self._start(request, self._outbox, departure)
                except Exception as error:
                    await self._outbox.put(error_message(error, request.id))
                else:
                    self._running[task] = departure
                    task.add_done_callback(self._running.pop)
            if self._running:
                await asyncio.wait(self._running)
        finally:
            self._outbox.close()

    async def _send(self, message: Any) -> None:
        """A client that does not read for too long is taken for one that has left.

        Its end must have a status all the same: a call whose task was cancelled stays open for ever.
        """
        sending = asyncio.current_task()
        assert sending is not None
        deadline = asyncio.get_running_loop().call_later(self._send_timeout_s, self._give_up, sending)
        try:
            await self._context.write(message)
        except asyncio.CancelledError:
            if not self._gave_up:
                raise
            late = f"the client read nothing for {self._send_timeout_s:g} s"
            raise InflightError(ErrorKind.CANCELLED, late) from None
        finally:
            deadline.cancel()

    def _give_up(self, sending: asyncio.Task[Any]) -> None:
        self._gave_up = True
        sending.cancel()

    def close_if_idle(self) -> None:
        if not self._running:
            self._outbox.close()
