"""What one router tells the others, as stored in Redis."""

from __future__ import annotations

import msgspec

from router.control.peers.slots import Load
from router.tenants.shared_usage import Used


class Message(msgspec.Struct, frozen=True):
    """By subject, an organisation or a key; and by the name of a release."""

    used: dict[str, Used] = {}
    loads: dict[str, Load] = {}


def encode(message: Message) -> bytes:
    return msgspec.msgpack.encode(message)


def decode(told: bytes) -> Message:
    """Raises ValueError for anything else; other versions may add fields."""
    try:
        return msgspec.msgpack.decode(told, type=Message)
    except msgspec.DecodeError as error:
        raise ValueError(f"not a message from a router: {error}") from error
