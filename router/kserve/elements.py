"""All types of elements that the protocol has: how many bytes one takes, to bytes and back."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from python_backend.wire import codec

if TYPE_CHECKING:
    from collections.abc import Sequence

ELEMENT_BYTES = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "BF16": 2,
    "FP32": 4,
    "FP64": 8,
}
INTEGERS = {
    **{f"INT{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)},
}
LARGEST_FLOAT = {
    "FP16": 65504.0,
    "FP32": struct.unpack("<f", b"\xff\xff\x7f\x7f")[0],
    "FP64": struct.unpack("<d", b"\xff\xff\xff\xff\xff\xff\xef\x7f")[0],
}
# What our own models have no use for. BF16 is in neither: nobody writes it as numbers.
_BEYOND_OURS = {"UINT16": "H", "UINT32": "I", "INT8": "b", "INT16": "h", "FP64": "d"}
_LENGTH = struct.Struct("<I")


def encode(dtype: str, elements: Sequence[Any]) -> bytes:
    code = _BEYOND_OURS.get(dtype)
    if code is None:
        return codec.encode(dtype, elements)
    return struct.pack(f"<{len(elements)}{code}", *elements)


def decode(dtype: str, raw: bytes) -> list[Any]:
    code = _BEYOND_OURS.get(dtype)
    if code is None:
        return codec.decode(dtype, raw)
    return list(struct.unpack(f"<{len(raw) // ELEMENT_BYTES[dtype]}{code}", raw))


def is_whole(dtype: str, count: int, raw: bytes) -> bool:
    """Whether the bytes are those of so many elements, no more and no less."""
    if dtype != "BYTES":
        return len(raw) == count * ELEMENT_BYTES[dtype]
    position = found = 0
    while position + _LENGTH.size <= len(raw):
        position += _LENGTH.size + _LENGTH.unpack_from(raw, position)[0]
        found += 1
    return position == len(raw) and found == count
