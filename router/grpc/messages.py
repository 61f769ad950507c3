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

    __slots__ = ("_held", "_max_message_bytes", "needed_bytes")

    def __init__(self, max_message_bytes: int) -> None:
        self._max_message_bytes = max_message_bytes
        self._held = bytearray()
        self.needed_bytes = 0  # all of the message that is held in part

    @property
    def held_bytes(self) -> int:
        """What has come of a message that is not whole yet."""
        return len(self._held)

    def feed(self, data: bytes) -> list[bytes]:
        if self._held:
            self._held += data
            if len(self._held) < self.needed_bytes:
                return []
            data = bytes(self._held)
            self._held.clear()
        messages = []
        at, end = 0, len(data)
        while at < end:
            needed = PREFIX_BYTES
            if end - at >= PREFIX_BYTES:
                needed += self._length(data, at)
                if at + needed <= end:
                    messages.append(data[at + PREFIX_BYTES : at + needed])
                    at += needed
                    continue
            self._held += data[at:]
            self.needed_bytes = needed
            break
        return messages

    def _length(self, data: bytes, at: int) -> int:
        compressed, length = PREFIX.unpack_from(data, at)
        if compressed:
            raise GrpcError(StatusCode.INTERNAL, "the message is compressed, which was not offered")
        if length > self._max_message_bytes:
            raise GrpcError(
                StatusCode.RESOURCE_EXHAUSTED,
                f"a message of {length} bytes is larger than {self._max_message_bytes}",
            )
        return int(length)
