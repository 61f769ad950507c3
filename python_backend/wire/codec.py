"""Turns plain values into Triton's raw tensor bytes and back, without numpy."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

_FORMATS = {
    "BOOL": "?",
    "UINT8": "B",
    "INT32": "i",
    "INT64": "q",
    "UINT64": "Q",
    "FP16": "e",
    "FP32": "f",
}
_LENGTH = struct.Struct("<I")


def encode(dtype: str, values: Sequence[Any]) -> bytes:
    """The bytes of one tensor, elements in row-major order, little-endian; BYTES elements carry a length."""
    if dtype == "BYTES":
        parts = bytearray()
        for value in values:
            data = value.encode() if isinstance(value, str) else value
            parts += _LENGTH.pack(len(data))
            parts += data
        return bytes(parts)
    return struct.pack(f"<{len(values)}{_FORMATS[dtype]}", *values)


def decode(dtype: str, raw: bytes) -> list[Any]:
    """The elements of one tensor; BYTES elements come back as bytes."""
    if dtype != "BYTES":
        code = _FORMATS[dtype]
        return list(struct.unpack(f"<{len(raw) // struct.calcsize(code)}{code}", raw))
    values: list[Any] = []
    position = 0
    while position < len(raw):
        (size,) = _LENGTH.unpack_from(raw, position)
        position += _LENGTH.size
        if position + size > len(raw):
            raise ValueError(f"a BYTES element of {size} bytes runs past the end of its tensor")
        values.append(raw[position : position + size])
        position += size
    return values
