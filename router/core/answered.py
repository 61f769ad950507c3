"""What a release gave to a request, as far as two releases can be compared."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answered:
    """A text for each choice, or the bytes of vectors and how many rows they have."""

    texts: tuple[str, ...] = ()
    vectors: bytes = b""
    rows: int = 0

    @property
    def size(self) -> int:
        return self.rows or sum(map(len, self.texts))
