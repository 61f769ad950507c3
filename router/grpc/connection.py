"""One HTTP/2 connection to a gRPC server, from the client's side."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Protocol, cast

from router.grpc import frames
from router.grpc.call import STREAM_WINDOW_BYTES, Call
from router.grpc.frames import ConnectionFailure, ErrorCode, Setting
from router.grpc.headers import MAX_HEADER_BYTES, read_block
from router.grpc.sender import RequestHeaders, Sender, timeout_field
from router.grpc.status import GrpcError, StatusCode, from_reset

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

# Every stream has its own window; this one must never be what holds a stream back.
_WINDOW_BYTES = 64 << 20
_HELLO = (
    frames.PREFACE
    + frames.settings(
        {
            Setting.HEADER_TABLE_SIZE: 0,
            Setting.ENABLE_PUSH: 0,
            Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
        }
    )
    + frames.window_update(0, _WINDOW_BYTES - frames.DEFAULT_WINDOW_BYTES)
)
_ACK_SETTINGS = frames.frame(frames.SETTINGS, frames.ACK, 0)
# Triton closes a connection that pings more often than every 300 s without data.
_SILENCE_S = 310.0
_PING_TIMEOUT_S = 20.0
# Encrypted, Triton does not answer a goodbye, and does not stop before the connection is gone.
_GOODBYE_S = 1.0
_PING = frames.frame(frames.PING, 0, 0, b"inflight")
# The kernel notices a peer whose machine is gone, long before a ping is allowed.
_TCP_OPTIONS = (
    ("TCP_NODELAY", 1),
    ("TCP_USER_TIMEOUT", 20_000),
    ("TCP_KEEPIDLE", 30),
    ("TCP_KEEPINTVL", 10),
    ("TCP_KEEPCNT", 3),
)


class Owner(Protocol):
    """The channel, as a connection sees it."""

    def ready(self, connection: Connection) -> None:
        """The server has said its settings: calls may begin."""

    def changed(self, connection: Connection) -> None:
        """There is room for calls again, or never will be."""

    def lost(self, connection: Connection, reason: str) -> None:
        """Gone; its calls have ended."""

    def refused(self, call: Call) -> None:
        """The server has not looked at this call: it may go elsewhere."""


class Connection(asyncio.Protocol):
    """Reads many frames at a time, and writes each request at once where the windows allow it.

    A call is in `_calls` exactly as long as the server may still send for it. Whatever ends it takes it out
    first; the loss of the connection ends all that are left.
    """

    def __init__(self, owner: Owner, headers: RequestHeaders) -> None:
        self._owner = owner
        self._headers = headers
        self._calls: dict[int, Call] = {}
        self._next_id = 1
        self._rest = b""
        self._block: tuple[int, int, bytes] | None = None  # stream, flags, what has come of a header block
        self._received_bytes = 0
        self._sender = Sender()
        self._max_calls = frames.LARGEST_STREAM_ID
        self._heard = False
        self._silence: asyncio.TimerHandle | None = None
        self._goodbye: asyncio.TimerHandle | None = None
        self._reason = "the connection was closed"
        self.is_ready = False
        self.leaving = False
        self._handlers: dict[int, Callable[[int, int, bytes], None]] = {
            frames.DATA: self._on_data,
            frames.HEADERS: self._on_headers,
            frames.RST_STREAM: self._on_reset,
            frames.SETTINGS: self._on_settings,
            frames.PUSH_PROMISE: self._on_push_promise,
            frames.PING: self._on_ping,
            frames.GOAWAY: self._on_goaway,
            frames.WINDOW_UPDATE: self._on_window_update,
            frames.CONTINUATION: self._on_continuation,
        }

    @property
    def open_calls(self) -> int:
        return len(self._calls)

    @property
    def has_room(self) -> bool:
        return self.is_ready and not self.leaving and len(self._calls) < self._max_calls

    # The calls

    def begin(self, call: Call) -> bool:
        """False where there is no room for it."""
        if len(self._calls) >= self._max_calls or self.leaving or not self.is_ready:
            return False
        stream_id = self._next_id
        self._next_id += 2
        if self._next_id > frames.LARGEST_STREAM_ID:
            self.leaving = True
        call.carrier = self
        call.stream_id = stream_id
        call.attempts += 1
        self._calls[stream_id] = call
        block = self._headers[call.method]
        if call.deadline_s is not None:
            timeout_s = call.deadline_s - asyncio.get_running_loop().time()
            block += timeout_field(timeout_s)
        self._sender.request(call, block)
        return True

    def credit(self, call: Call, increment_bytes: int) -> None:
        self._sender.write(frames.window_update(call.stream_id, increment_bytes))

    def drop(self, call: Call) -> None:
        if self._forget(call.stream_id) is not None:
            self._sender.write(frames.reset(call.stream_id, ErrorCode.CANCEL))

    def _forget(self, stream_id: int) -> Call | None:
        call = self._calls.pop(stream_id, None)
        if call is not None:
            self._sender.forget(stream_id)
            was_full = len(self._calls) + 1 >= self._max_calls
            if was_full or (self.leaving and not self._calls):
                asyncio.get_running_loop().call_soon(self._owner.changed, self)
        return call

    # The socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family != socket.AF_UNIX:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _TCP_OPTIONS:
                raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._transport.write(_HELLO)
        self._sender.start(self._transport)
        self._listen()

    def data_received(self, data: bytes) -> None:
        self._heard = True
        if self._rest:
            data = self._rest + data
        at, end = 0, len(data)
        try:
            while end - at >= frames.HEAD_BYTES:
                high, low, kind, flags, stream_id = frames.HEAD.unpack_from(data, at)
                size = high << 8 | low
                if size > frames.DEFAULT_FRAME_BYTES:
                    raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
                stop = at + frames.HEAD_BYTES + size
                if stop > end:
                    break
                if self._block is not None and kind != frames.CONTINUATION:
                    raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "a header block was interrupted")
                payload = data[at + frames.HEAD_BYTES : stop]
                at = stop
                if kind == frames.DATA and not flags and stream_id in self._calls:  # as good as every frame
                    self._received_bytes += size
                    self._calls[stream_id].receive(payload, size)
                elif (handler := self._handlers.get(kind)) is not None:
                    handler(stream_id & frames.LARGEST_STREAM_ID, flags, payload)
        except ConnectionFailure as failure:
            self._fail(failure)
            return
        self._rest = data[at:] if at < end else b""
        if self._received_bytes >= _WINDOW_BYTES // 2:
            self._sender.write(frames.window_update(0, self._received_bytes))
            self._received_bytes = 0

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._reason = f"the connection was lost: {exc}"
        self.leaving = True
        for timer in (self._silence, self._goodbye):
            if timer is not None:
                timer.cancel()
        self._sender.stop()
        self._end_all()
        self._owner.lost(self, self._reason)

    def _end_all(self) -> None:
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.end(GrpcError(StatusCode.UNAVAILABLE, self._reason, lost=True))

    def close(self) -> None:
        """Gives up what is still running."""
        for call in list(self._calls.values()):
            call.fail(GrpcError(StatusCode.CANCELLED, "the channel was closed"))
        self._leave(ErrorCode.NO_ERROR)

    def _fail(self, failure: ConnectionFailure) -> None:
        log.error("the server broke HTTP/2: %s", failure)
        self._reason = f"the server broke HTTP/2: {failure}"
        self._rest = b""
        self._leave(failure.code, str(failure))
        # Closing waits until everything is written, and who breaks the protocol may not read either.
        self._end_all()
        self._transport.abort()

    def _leave(self, code: ErrorCode, message: str = "") -> None:
        self.leaving = True
        self._sender.write(frames.goaway(code, message))
        self._sender.stop()
        self._transport.close()
        self._goodbye = asyncio.get_running_loop().call_later(_GOODBYE_S, self._transport.abort)

    # The frames

    def _running(self, stream_id: int) -> Call | None:
        """The call of a stream; None for one that has ended, of which something may still be under way."""
        call = self._calls.get(stream_id)
        if call is None and (stream_id >= self._next_id or stream_id % 2 == 0):
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} was never opened")
        return call

    def _on_data(self, stream_id: int, flags: int, payload: bytes) -> None:
        size = len(payload)
        self._received_bytes += size
        call = self._running(stream_id)
        if flags & frames.PADDED:
            payload = frames.without_padding(payload)
        if call is not None:
            call.receive(payload, size)
            if flags & frames.END_STREAM and self._forget(stream_id) is not None:
                call.end(GrpcError(StatusCode.INTERNAL, "the stream ended without a status"))

    def _on_headers(self, stream_id: int, flags: int, payload: bytes) -> None:
        if flags & frames.PADDED:
            payload = frames.without_padding(payload)
        if flags & frames.HAS_PRIORITY:
            payload = payload[5:]
        if flags & frames.END_HEADERS:
            self._take_block(stream_id, flags, payload)
        else:
            self._block = (stream_id, flags, payload)

    def _on_continuation(self, stream_id: int, flags: int, payload: bytes) -> None:
        if self._block is None or self._block[0] != stream_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "a CONTINUATION without a header block")
        _, first_flags, block = self._block
        block += payload
        if len(block) > MAX_HEADER_BYTES:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "an endless header block")
        self._block = (stream_id, first_flags, block)
        if flags & frames.END_HEADERS:
            self._block = None
            self._take_block(stream_id, first_flags, block)

    def _take_block(self, stream_id: int, flags: int, block: bytes) -> None:
        headers = read_block(block)
        call = self._running(stream_id)
        if call is None:
            return
        last = bool(flags & frames.END_STREAM)
        if last:
            if call.unsent is not None:  # answered before it was asked to the end
                self._sender.write(frames.reset(stream_id, ErrorCode.NO_ERROR))
            self._forget(stream_id)
        call.receive_headers(headers, last)

    def _on_reset(self, stream_id: int, flags: int, payload: bytes) -> None:
        code = frames.read_number(payload)
        if self._running(stream_id) is None:
            return
        call = self._forget(stream_id)
        if call is not None:
            if code == ErrorCode.REFUSED_STREAM:
                self._owner.refused(call)
            else:
                call.end(from_reset(code))

    def _on_settings(self, stream_id: int, flags: int, payload: bytes) -> None:
        if flags & frames.ACK:
            return
        for name, value in frames.read_settings(payload):
            if name == Setting.INITIAL_WINDOW_SIZE:
                self._sender.resize_streams(value)
            elif name == Setting.MAX_FRAME_SIZE:
                self._sender.resize_frames(value)
            elif name == Setting.MAX_CONCURRENT_STREAMS:
                self._max_calls = value
        self._sender.write(_ACK_SETTINGS)
        if self.is_ready:
            asyncio.get_running_loop().call_soon(self._owner.changed, self)
        else:
            self.is_ready = True
            self._owner.ready(self)

    def _on_window_update(self, stream_id: int, flags: int, payload: bytes) -> None:
        increment = frames.read_number(payload)
        if increment == 0:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "a WINDOW_UPDATE of 0")
        if stream_id == 0:
            self._sender.widen(None, increment)
        elif (call := self._running(stream_id)) is not None:
            self._sender.widen(call, increment)

    def _on_ping(self, stream_id: int, flags: int, payload: bytes) -> None:
        if len(payload) != 8:
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, f"a PING of {len(payload)} bytes")
        if not flags & frames.ACK:
            self._sender.write(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _on_goaway(self, stream_id: int, flags: int, payload: bytes) -> None:
        """The streams up to the one named are finished; those beyond it were not looked at."""
        last_id = frames.read_number(payload)
        code = frames.read_number(payload, 4)
        if code != ErrorCode.NO_ERROR:
            log.warning(
                "the server closes the connection (GOAWAY): HTTP/2 error %d, %r", code, payload[8:200]
            )
        self.leaving = True
        self._reason = "the server closed the connection"
        for call in [call for number, call in self._calls.items() if number > last_id]:
            self._forget(call.stream_id)
            self._owner.refused(call)
        asyncio.get_running_loop().call_soon(self._owner.changed, self)

    def _on_push_promise(self, stream_id: int, flags: int, payload: bytes) -> None:
        raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "a PUSH_PROMISE, which was not allowed")

    # Time

    def _listen(self) -> None:
        self._heard = False
        loop = asyncio.get_running_loop()
        self._silence = loop.call_later(_SILENCE_S, self._check_silence)

    def _check_silence(self) -> None:
        if self._heard:
            self._listen()
            return
        self._sender.write(_PING)
        loop = asyncio.get_running_loop()
        self._silence = loop.call_later(_PING_TIMEOUT_S, self._check_answer)

    def _check_answer(self) -> None:
        if self._heard:
            self._listen()
        else:
            self._reason = "the server does not answer pings"
            self.leaving = True
            self._transport.abort()
