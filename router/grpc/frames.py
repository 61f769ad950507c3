"""HTTP/2 frames as bytes (RFC 9113)."""

from __future__ import annotations

import struct
from enum import IntEnum

# Two numbers make the 24 bits of the length; then type, flags, stream.
HEAD = struct.Struct(">HBBBI")
HEAD_BYTES = HEAD.size
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# What we accept, and what a peer accepts until it says otherwise.
DEFAULT_FRAME_BYTES = 16_384
DEFAULT_WINDOW_BYTES = 65_535
LARGEST_WINDOW_BYTES = (1 << 31) - 1
LARGEST_STREAM_ID = (1 << 31) - 1

# Plain numbers, not an enum: they are compared once for each frame.
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20

_SETTING = struct.Struct(">HI")
_NUMBER = struct.Struct(">I")


class Setting(IntEnum):
    """Names of the settings we send or heed."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5


class ErrorCode(IntEnum):
    """Why a stream or a connection is given up."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9


class ConnectionFailure(Exception):
    """The peer broke the protocol: nothing it sends on this connection can be trusted any more."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def head(length: int, kind: int, flags: int, stream_id: int) -> bytes:
    return HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream_id)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return head(len(payload), kind, flags, stream_id) + payload


def settings(values: dict[Setting, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*pair) for pair in values.items()))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    if len(payload) % _SETTING.size:
        raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
    return list(_SETTING.iter_unpack(payload))


def window_update(stream_id: int, increment: int) -> bytes:
    return head(4, WINDOW_UPDATE, 0, stream_id) + _NUMBER.pack(increment)


def reset(stream_id: int, code: ErrorCode) -> bytes:
    return head(4, RST_STREAM, 0, stream_id) + _NUMBER.pack(code)


def goaway(code: ErrorCode, message: str = "") -> bytes:
    """We never accept streams, so the last one accepted is always 0."""
    return frame(GOAWAY, 0, 0, _NUMBER.pack(0) + _NUMBER.pack(code) + message.encode())


def read_number(payload: bytes, at: int = 0) -> int:
    """31 bits; the first one is reserved."""
    if len(payload) < at + 4:
        raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {len(payload)} bytes is too short")
    (number,) = _NUMBER.unpack_from(payload, at)
    return int(number) & LARGEST_STREAM_ID


def without_padding(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "the padding is longer than the frame")
    return payload[1 : len(payload) - payload[0]]
