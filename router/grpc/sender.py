"""What goes out on a connection: requests as far as the server's windows allow, many frames in one write.

We announce a header table of size 0, and use none either: the headers of a request depend on nothing that was
sent before, and are made once for each method.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from router.grpc import frames
from router.grpc.call import PREFIX
from router.grpc.frames import ConnectionFailure, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router.grpc.call import Call

_HEAD = frames.HEAD.pack


class Sender:
    """Requests begin in their order; one that waits for a window lets those behind it wait too.

    Frames are written once in a turn of the event loop: a system call costs more than all the rest.
    """

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes | memoryview] = []
        self._has_large = False
        self._window_bytes = frames.DEFAULT_WINDOW_BYTES
        self._stream_window_bytes = frames.DEFAULT_WINDOW_BYTES
        self._frame_bytes = frames.DEFAULT_FRAME_BYTES
        self._waiting: dict[int, Call] = {}

    def start(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def stop(self) -> None:
        """The transport is gone, or about to be: what comes after is for nobody."""
        self.flush()
        self._transport = None
        self._waiting.clear()

    def write(self, *data: bytes | memoryview) -> None:
        if not self._out:
            asyncio.get_running_loop().call_soon(self.flush)
        self._out += data

    def flush(self) -> None:
        out, self._out = self._out, []
        has_large, self._has_large = self._has_large, False
        if out and self._transport is not None and not self._transport.is_closing():
            if has_large:
                self._transport.writelines(out)
            else:
                self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def request(self, call: Call, block: bytes) -> None:
        """A whole request: its headers, and its one message."""
        stream_id = call.stream_id
        length = len(block)
        head = _HEAD(length >> 8, length & 0xFF, frames.HEADERS, frames.END_HEADERS, stream_id)
        prefix = PREFIX.pack(0, len(call.request))
        size = len(prefix) + len(call.request)
        call.send_window_bytes = self._stream_window_bytes
        if self._waiting or size > min(self._frame_bytes, self._window_bytes, call.send_window_bytes):
            self.write(head + block)
            call.unsent = memoryview(call.request)
            call.unsent_prefix = prefix
            self._waiting[stream_id] = call
            self._send_more()
        else:
            self._window_bytes -= size
            data_head = _HEAD(size >> 8, size & 0xFF, frames.DATA, frames.END_STREAM, stream_id)
            self.write(b"".join((head, block, data_head, prefix, call.request)))

    def forget(self, stream_id: int) -> None:
        if self._waiting:
            self._waiting.pop(stream_id, None)

    def widen(self, call: Call | None, increment_bytes: int) -> None:
        """The server takes more, of one call or of all together."""
        if call is not None:
            call.send_window_bytes += increment_bytes
        else:
            self._window_bytes += increment_bytes
            if self._window_bytes > frames.LARGEST_WINDOW_BYTES:
                raise ConnectionFailure(ErrorCode.FLOW_CONTROL_ERROR, "a window over the limit")
        self._send_more()

    def resize_streams(self, size: int) -> None:
        if size > frames.LARGEST_WINDOW_BYTES:
            raise ConnectionFailure(ErrorCode.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE of {size}")
        difference = size - self._stream_window_bytes
        self._stream_window_bytes = size
        for call in self._waiting.values():
            call.send_window_bytes += difference
        self._send_more()

    def resize_frames(self, size: int) -> None:
        if not frames.DEFAULT_FRAME_BYTES <= size < 1 << 24:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE of {size}")
        self._frame_bytes = size

    def _send_more(self) -> None:
        for call in list(self._waiting.values()):
            self._send_some(call)
            if self._window_bytes <= 0:
                break

    def _send_some(self, call: Call) -> None:
        """As much as the windows allow, without a copy of what may be megabytes."""
        prefix, unsent = call.unsent_prefix, call.unsent
        out: list[bytes | memoryview] = []
        while unsent is not None:
            left = len(prefix) + len(unsent)
            size = min(left, self._frame_bytes, self._window_bytes, call.send_window_bytes)
            if size < len(prefix) or size <= 0:
                break
            flags = frames.END_STREAM if size == left else 0
            head = _HEAD(size >> 8, size & 0xFF, frames.DATA, flags, call.stream_id)
            out += (head + prefix, unsent[: size - len(prefix)])
            unsent = unsent[size - len(prefix) :] if size < left else None
            prefix = b""
            self._window_bytes -= size
            call.send_window_bytes -= size
        call.unsent_prefix, call.unsent = prefix, unsent
        if unsent is None:
            del self._waiting[call.stream_id]
        if out:
            self._has_large = True
            self.write(*out)


_POST, _HTTP, _HTTPS = b"\x83", b"\x86", b"\x87"  # whole fields of the static table
_LARGEST_TIMEOUT = 99_999_999  # eight digits


def _length(size: int) -> bytes:
    """An integer with a prefix of seven bits, the first bit 0: no Huffman coding."""
    if size < 127:
        return bytes((size,))
    rest = size - 127
    encoded = bytearray((127,))
    while rest >= 128:
        encoded.append(rest % 128 + 128)
        rest //= 128
    encoded.append(rest)
    return bytes(encoded)


def _text(text: str) -> bytes:
    data = text.encode("ascii")
    return _length(len(data)) + data


def literal(name: str, value: str) -> bytes:
    """A field that no table remembers."""
    return b"\x00" + _text(name) + _text(value)


class RequestHeaders(dict[str, bytes]):
    """The block of each method that is called on one server, made when it is first asked for."""

    def __init__(
        self, authority: str, metadata: Mapping[str, str] | None = None, is_encrypted: bool = False
    ) -> None:
        super().__init__()
        fields = {
            "te": "trailers",
            "content-type": "application/grpc",
            "user-agent": "inflight-router",
            **(metadata or {}),
        }
        # Field 1 of the static table is :authority, field 4 is :path.
        self._start = _POST + (_HTTPS if is_encrypted else _HTTP) + b"\x01" + _text(authority) + b"\x04"
        self._end = b"".join(literal(name, value) for name, value in fields.items())

    def __missing__(self, method: str) -> bytes:
        block = self[method] = self._start + _text(method) + self._end
        return block


def timeout_field(timeout_s: float) -> bytes:
    return literal("grpc-timeout", timeout_text(timeout_s))


def timeout_text(timeout_s: float) -> str:
    """Rounded up: the server must not be the first to give up."""
    milliseconds = max(1, -int(-timeout_s * 1000 // 1))
    if milliseconds <= _LARGEST_TIMEOUT:
        return f"{milliseconds}m"
    return f"{min(milliseconds // 1000 + 1, _LARGEST_TIMEOUT)}S"
