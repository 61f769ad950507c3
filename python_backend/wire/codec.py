"""Turns plain values into Triton's raw tensor bytes and back, without numpy."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

Sliced = TypeVar("Sliced", bytes, Sequence[Any])

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
# Nothing else runs in this process while so many elements are packed: a fraction of a millisecond.
SLICE_ELEMENTS = 1 << 14


def encode(dtype: str, values: Sequence[Any]) -> bytes:
    """The bytes of one tensor, elements in row-major order, little-endian; BYTES elements carry a length."""
    if dtype == "BYTES":
        parts = bytearray()
        for value in values:
            data = value.encode() if isinstance(value, str) else value
            parts += _LENGTH.pack(len(data))
            parts += data
        return bytes(parts)
    return pack(_FORMATS[dtype], values)


def decode(dtype: str, raw: bytes) -> list[Any]:
    """The elements of one tensor; BYTES elements come back as bytes."""
    if dtype != "BYTES":
        return unpack(_FORMATS[dtype], raw)
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


def pack(code: str, values: Sequence[Any]) -> bytes:
    """Return the elements one after another; `code` is that of one, as `struct` has it."""
    if len(values) <= SLICE_ELEMENTS:
        return struct.pack(f"<{len(values)}{code}", *values)
    return b"".join([pack(code, each) for each in slices(values)])


def unpack(code: str, raw: bytes) -> list[Any]:
    size = struct.calcsize(f"<{code}")
    values: list[Any] = []
    for piece in slices(raw, size * SLICE_ELEMENTS):
        values += struct.unpack(f"<{len(piece) // size}{code}", piece)
    return values


def slices(values: Sliced, size: int = SLICE_ELEMENTS) -> Iterator[Sliced]:
    """Pieces that are handled one at a time, so that other threads may run in between."""
    return (values[start : start + size] for start in range(0, len(values), size))
