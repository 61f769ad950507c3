"""Cuts the bytes of a stream into gRPC messages, however they were spread over frames."""

from __future__ import annotations

import struct

from router.grpc.status import GrpcError, StatusCode

PREFIX = struct.Struct(">BI")
PREFIX_BYTES = PREFIX.size


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
