"""The metadata of a GGUF file, texts included.

The gguf package's own reader makes an object of every text, which takes seconds for a vocabulary.
"""

from __future__ import annotations

import mmap
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

MAGIC = b"GGUF"
VERSIONS = (2, 3)
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, ARRAY = 8, 9


class MetadataError(Exception):
    """The file is not one whose metadata can be read."""


def read_fields(path: Path) -> dict[str, Any]:
    """Fields by name: texts, numbers, and lists of them."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _Cursor(content).fields()
    except (OSError, ValueError, ArithmeticError, LookupError, RecursionError, struct.error) as error:
        raise MetadataError(f"{path} cannot be read as GGUF: {error}") from error


class _Cursor:
    def __init__(self, content: mmap.mmap) -> None:
        self._content = content
        self._at = 0

    def fields(self) -> dict[str, Any]:
        if self._content[:4] != MAGIC:
            raise ValueError("it does not begin with GGUF")
        self._at = 4
        version, _, field_count = self._take("IQQ")
        if version not in VERSIONS:
            raise ValueError(f"it is of version {version}; known are {', '.join(map(str, VERSIONS))}")
        fields: dict[str, Any] = {}
        for _ in range(field_count):
            name = self._text()
            (kind,) = self._take("I")
            fields[name] = self._value(kind)
        return fields

    def _value(self, kind: int) -> Any:
        if kind == TEXT:
            return self._text()
        if kind == ARRAY:
            kind, count = self._take("IQ")
            if kind in (TEXT, ARRAY):
                return [self._value(kind) for _ in range(count)]
            return list(self._take(f"{count}{SCALARS[kind]}"))
        return self._take(SCALARS[kind])[0]

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
