"""A server's side of a connection, byte by byte, with no socket in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from router.grpc import frames
from router.grpc.call import Call, prefixed
from router.grpc.connection import Connection
from router.grpc.sender import RequestHeaders, literal

HEADERS = b"\x88" + literal("content-type", "application/grpc")
OK = literal("grpc-status", "0")
LAST = frames.END_HEADERS | frames.END_STREAM


def headers(stream_id: int, block: bytes = HEADERS, last: bool = False) -> bytes:
    return frames.frame(frames.HEADERS, LAST if last else frames.END_HEADERS, stream_id, block)


def trailers(stream_id: int, block: bytes = OK) -> bytes:
    return headers(stream_id, block, last=True)


def data(stream_id: int, payload: bytes, flags: int = 0) -> bytes:
    return frames.frame(frames.DATA, flags, stream_id, payload)


def answer(stream_id: int, *messages: bytes) -> bytes:
    """Everything a server says to one call."""
    return headers(stream_id) + data(stream_id, b"".join(map(prefixed, messages))) + trailers(stream_id)


def goaway(last_id: int, code: int = 0) -> bytes:
    return frames.frame(frames.GOAWAY, 0, 0, last_id.to_bytes(4, "big") + code.to_bytes(4, "big"))


class RecordingTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed, "written to a closed transport"
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


@dataclass
class Frame:
    kind: int
    flags: int
    stream_id: int
    payload: bytes


def parse(written: bytes) -> list[Frame]:
    found = []
    at = 0
    while at < len(written):
        high, low, kind, flags, stream_id = frames.HEAD.unpack_from(written, at)
        stop = at + frames.HEAD_BYTES + (high << 8 | low)
        found.append(Frame(kind, flags, stream_id, written[at + frames.HEAD_BYTES : stop]))
        at = stop
    assert at == len(written), "a frame was written in part"
    return found


@dataclass
class Peer:
    """A connection that has been greeted, and what it told its owner."""

    settings: dict[frames.Setting, int] = field(default_factory=dict)
    refusals: list[Call] = field(default_factory=list)
    changes: int = 0
    reason: str | None = None
    is_ready: bool = False

    def __post_init__(self) -> None:
        self.transport = RecordingTransport()
        self.connection = Connection(self, RequestHeaders("triton:8001"))
        self.connection.connection_made(self.transport)
        assert self.transport.written.startswith(frames.PREFACE)
        self.say(frames.settings(self.settings))
        self.flush()
        self.transport.written = b""

    def ready(self, connection: Connection) -> None:
        self.is_ready = True

    def changed(self, connection: Connection) -> None:
        self.changes += 1

    def lost(self, connection: Connection, reason: str) -> None:
        self.reason = reason

    def refused(self, call: Call) -> None:
        self.refusals.append(call)

    def say(self, data: bytes) -> None:
        self.connection.data_received(data)

    def heard(self) -> list[Frame]:
        """Frames written since this was asked last."""
        self.flush()
        written, self.transport.written = self.transport.written, b""
        return parse(written)

    def flush(self) -> None:
        """Does not wait for the end of this turn of the event loop, when frames are written."""
        self.connection._sender.flush()

    def begin(
        self,
        request: bytes = b"hello",
        max_message_bytes: int = 1 << 20,
        on_end: Callable[[], None] | None = None,
    ) -> Call:
        call = Call("/service/Method", request, max_message_bytes, on_end)
        self.connection.begin(call)
        return call

    def hang_up(self) -> None:
        self.transport.closed = True
        self.connection.connection_lost(None)


async def read_all(call: Call) -> list[bytes]:
    messages = []
    while (message := await call.read()) is not None:
        messages.append(message)
    return messages
