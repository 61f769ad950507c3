"""One gRPC call: a request, and the messages of its answer, however they were spread over frames."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import TYPE_CHECKING, Protocol

from router.grpc.status import GrpcError, StatusCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.grpc.headers import ResponseHeaders

# Before each message: whether it is compressed, and its size.
PREFIX = struct.Struct(">BI")
PREFIX_BYTES = PREFIX.size
# What a server may send ahead of the reader. With the bytes that wait for a slow HTTP client this stays under
# 256 KiB a stream.
STREAM_WINDOW_BYTES = 128 << 10
# Nothing is owed to a server that has more than this left: see `_credit`.
_LOW_WINDOW_BYTES = STREAM_WINDOW_BYTES // 2


class Carrier(Protocol):
    """The connection, as a call sees it."""

    def credit(self, call: Call, increment_bytes: int) -> None:
        """Lets the server send that much more on this stream."""

    def drop(self, call: Call) -> None:
        """Takes a call off the connection that the server has not ended."""


class Call:
    """Ends exactly once, with `error` None or saying why; what was received before can still be read."""

    __slots__ = (
        "_deadline",
        "_discarding",
        "_on_end",
        "_reader",
        "_started",
        "_unread_bytes",
        "_waiter",
        "_window_bytes",
        "attempts",
        "carrier",
        "deadline_s",
        "ended",
        "error",
        "messages",
        "method",
        "request",
        "send_window_bytes",
        "stream_id",
        "unsent",
        "unsent_prefix",
    )

    def __init__(
        self,
        method: str,
        request: bytes,
        max_message_bytes: int,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        self.method = method
        self.request = request
        self.ended = False
        self.error: GrpcError | None = None
        # Kept by the connection: itself, our stream on it, and what the server's window has not let through.
        self.carrier: Carrier | None = None
        self.stream_id = 0
        self.send_window_bytes = 0
        self.unsent: memoryview | None = None
        self.unsent_prefix = b""
        self.attempts = 0
        self.deadline_s: float | None = None
        self._reader = MessageReader(max_message_bytes)
        self.messages: deque[bytes] = deque()  # those that have come and were not taken
        self._unread_bytes = 0
        self._window_bytes = STREAM_WINDOW_BYTES
        self._started = False
        self._discarding = False
        self._waiter: asyncio.Future[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._on_end = on_end  # called once

    # For the caller

    def take(self) -> bytes | None:
        """The next message; None where it has not come, and after the last once the call has `ended`."""
        if not self.messages:
            return None
        message = self.messages.popleft()
        self._unread_bytes -= len(message) + PREFIX_BYTES
        if self._window_bytes <= _LOW_WINDOW_BYTES and not self.ended:
            self._credit()
        return message

    def arrival(self) -> asyncio.Future[None]:
        """Done when a message has come that was not here, or the end; for one reader at a time."""
        if self._waiter is not None and not self._waiter.done():
            raise RuntimeError("this call already has a reader")
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    async def read(self) -> bytes | None:
        """The next message, or None after the last; raises GrpcError where the call failed."""
        while (message := self.take()) is None:
            if self.ended:
                if self.error is not None:
                    raise GrpcError(self.error.code, self.error.details, self.error.lost)
                return None
            await self.arrival()
        return message

    def cancel(self) -> None:
        """Gives the call up; what was not read is gone."""
        self.fail(GrpcError(StatusCode.CANCELLED, "cancelled by the caller"))
        self._forget_messages()

    def discard(self) -> None:
        """Lets the call run to its end with nobody reading."""
        self._discarding = True
        self._forget_messages()
        if not self.ended:
            self._credit()

    def set_deadline(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        self.deadline_s = loop.time() + timeout_s
        self._deadline = loop.call_later(timeout_s, self._expire)

    def fail(self, error: GrpcError) -> None:
        """Ends the call from this side."""
        if not self.ended:
            carrier = self.carrier
            self.end(error)
            if carrier is not None:
                carrier.drop(self)

    def _expire(self) -> None:
        self.fail(GrpcError(StatusCode.DEADLINE_EXCEEDED, "the server did not answer in time"))

    # For the connection

    def closed_unseen(self) -> bool:
        """The server says it has not looked at this call; tells whether it may begin again elsewhere."""
        self.carrier = None
        self.unsent = None
        return not self._started

    def receive(self, data: bytes, flow_bytes: int) -> None:
        """Part of the answer; `flow_bytes` is what it counts against the window, padding included."""
        if not self._started:
            self.fail(GrpcError(StatusCode.INTERNAL, "the server sent a message before its headers"))
            return
        self._window_bytes -= flow_bytes
        if self._window_bytes < 0:
            self.fail(GrpcError(StatusCode.INTERNAL, "the server sent more than flow control allows"))
            return
        try:
            messages = self._reader.feed(data)
        except GrpcError as error:
            self.fail(error)
            return
        if messages and not self._discarding:
            self.messages += messages
            for message in messages:
                self._unread_bytes += len(message) + PREFIX_BYTES
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)
        if self._window_bytes <= _LOW_WINDOW_BYTES:
            self._credit()

    def receive_headers(self, headers: ResponseHeaders, last: bool) -> None:
        if last:
            error = headers.outcome()
            if error is None and self._reader.held_bytes:
                error = GrpcError(StatusCode.INTERNAL, "the stream ended inside a message")
            self.end(error)
        elif self._started:
            self.fail(GrpcError(StatusCode.INTERNAL, "the server sent its headers twice"))
        elif not headers.is_informational:
            self._started = True
            if (refusal := headers.refusal()) is not None:
                self.fail(refusal)

    def end(self, error: GrpcError | None) -> None:
        if self.ended:
            return
        self.ended = True
        self.error = error
        self.unsent = None
        self.carrier = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self._on_end is not None:
            callback, self._on_end = self._on_end, None
            callback()

    def _forget_messages(self) -> None:
        self.messages.clear()
        self._unread_bytes = 0

    def _credit(self) -> None:
        """Gives back what was read, so that unread messages and the window are one window together.

        A message that does not fit is given back as it comes, once it is the one that the reader waits for:
        otherwise it would never be whole.
        """
        kept_bytes = self._unread_bytes
        if self.messages or self._reader.needed_bytes <= _LOW_WINDOW_BYTES:
            kept_bytes += self._reader.held_bytes
        owed_bytes = STREAM_WINDOW_BYTES - self._window_bytes - kept_bytes
        if owed_bytes >= _LOW_WINDOW_BYTES and self.carrier is not None:
            self._window_bytes += owed_bytes
            self.carrier.credit(self, owed_bytes)


def prefixed(message: bytes) -> bytes:
    return PREFIX.pack(0, len(message)) + message


class MessageReader:
    """Takes bytes in any pieces and gives back whole messages."""

    __slots__ = ("_held", "_max_message_bytes", "held_bytes", "needed_bytes")

    def __init__(self, max_message_bytes: int) -> None:
        self._max_message_bytes = max_message_bytes
        self._held = bytearray()
        self.held_bytes = 0  # what has come of a message that is not whole yet
        self.needed_bytes = 0  # all of that message

    def feed(self, data: bytes) -> list[bytes]:
        if self.held_bytes:
            self._held += data
            self.held_bytes = len(self._held)
            if self.held_bytes < self.needed_bytes:
                return []
            data = bytes(self._held)
            self._held.clear()
        messages = []
        at, end = 0, len(data)
        while at < end:
            needed = PREFIX_BYTES
            if end - at >= PREFIX_BYTES:
                compressed, length = PREFIX.unpack_from(data, at)
                if compressed or length > self._max_message_bytes:
                    raise _refusal(compressed, length, self._max_message_bytes)
                needed += length
                if at + needed <= end:
                    messages.append(data[at + PREFIX_BYTES : at + needed])
                    at += needed
                    continue
            self._held += data[at:]
            self.needed_bytes = needed
            break
        self.held_bytes = end - at
        return messages


def _refusal(compressed: int, length: int, max_message_bytes: int) -> GrpcError:
    if compressed:
        return GrpcError(StatusCode.INTERNAL, "the message is compressed, which was not offered")
    message = f"a message of {length} bytes is larger than {max_message_bytes}"
    return GrpcError(StatusCode.RESOURCE_EXHAUSTED, message)
