"""The head of a GGUF file: its metadata and where its tensors are.

The gguf package's own reader makes an object of every token of the vocabulary, which takes seconds at every
start. The engine needs none of those texts and has them stepped over; who writes a tokenizer reads them.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from python_backend.wire.errors import ErrorKind, InflightError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """`begin` and `end` are offsets in the file; `shape` is in numpy's order, the fastest dimension last."""

    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    fields: dict[str, Any]
    tensors: dict[str, GgufTensor]


def read_header(path: Path, with_texts: bool = False) -> GgufHeader:
    """Fields are texts, numbers and lists of them; a list of texts is None unless asked for."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            header = _Cursor(content, with_texts).header()
            size_bytes = len(content)
    except (OSError, ValueError, ArithmeticError, LookupError, RecursionError, struct.error) as error:
        raise _unusable(f"{path} cannot be read as GGUF: {error}") from error
    if any(tensor.end > size_bytes for tensor in header.tensors.values()):
        raise _unusable(f"{path} cannot be read: it has {size_bytes} bytes, fewer than its header promises")
    return header


def _unusable(message: str) -> InflightError:
    return InflightError(ErrorKind.INVALID_REQUEST, message)


class _Cursor:
    def __init__(self, content: mmap.mmap, with_texts: bool) -> None:
        self._content = content
        self._with_texts = with_texts
        self._at = 0

    def header(self) -> GgufHeader:
        if self._content[:4] != _MAGIC:
            raise ValueError("it does not begin with GGUF")
        self._at = 4
        version, tensor_count, field_count = self._take("IQQ")
        if version not in _VERSIONS:
            raise ValueError(f"it has version {version}; supported: {', '.join(map(str, _VERSIONS))}")
        fields: dict[str, Any] = {}
        for _ in range(field_count):
            name = self._text()
            (kind,) = self._take("I")
            fields[name] = self._value(kind)
        described = [(self._text(), *self._tensor_description()) for _ in range(tensor_count)]
        alignment = fields.get("general.alignment", _DEFAULT_ALIGNMENT)
        data_begin = -(-self._at // alignment) * alignment
        tensors = {
            name: GgufTensor(kind, shape, data_begin + offset, data_begin + offset + size)
            for name, kind, shape, offset, size in described
        }
        return GgufHeader(fields, tensors)

    def _tensor_description(self) -> tuple[GGMLQuantizationType, tuple[int, ...], int, int]:
        (dimensions,) = self._take("I")
        shape = self._take(f"{dimensions}Q")[::-1]
        number, offset = self._take("IQ")
        kind = GGMLQuantizationType(number)
        values_per_block, bytes_per_block = GGML_QUANT_SIZES[kind]
        if shape[-1] % values_per_block:
            raise ValueError(
                f"a row of {shape[-1]} values is not a multiple of the block size of {kind.name}"
            )
        return kind, shape, offset, math.prod(shape) // values_per_block * bytes_per_block

    def _value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind == _ARRAY:
            kind, count = self._take("IQ")
            if kind == _TEXT:
                return self._texts(count)
            if kind == _ARRAY:
                return [self._value(_ARRAY) for _ in range(count)]
            return list(self._take(f"{count}{_SCALARS[kind]}"))
        return self._take(_SCALARS[kind])[0]

    def _take(self, layout: str) -> tuple[Any, ...]:
        packed = f"<{layout}"
        values = struct.unpack_from(packed, self._content, self._at)
        self._at += struct.calcsize(packed)
        return values

    def _text(self) -> str:
        (length,) = self._take("Q")
        begin = self._at
        self._at += length
        return self._content[begin : self._at].decode("utf-8")

    def _texts(self, count: int) -> list[str] | None:
        if self._with_texts:
            return [self._text() for _ in range(count)]
        for _ in range(count):
            (length,) = struct.unpack_from("<Q", self._content, self._at)
            self._at += 8 + length
        return None
