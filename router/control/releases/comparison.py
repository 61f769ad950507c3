"""How alike the answers of two releases to one request are."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router.core.answer_text import Answered

_MOST_ROWS = 32  # of vectors: multiplied out on the event loop


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of one request; never any text. Sizes are in characters or, of vectors, in rows.

    `likeness` is the share of the longer text that both have in common at their beginnings, or the cosine
    of vectors, of several the least.
    """

    at_s: float
    model: str
    version: int
    shadow_version: int
    is_equal: bool
    likeness: float
    size: int
    shadow_size: int
    took_s: float
    shadow_took_s: float
    error: str = ""  # of the shadow


def likeness_of_texts(one: str, other: str) -> float:
    shorter, longer = sorted((len(one), len(other)))
    common = next((place for place in range(shorter) if one[place] != other[place]), shorter)
    return common / longer if longer else 1.0


def likeness_of_vectors(one: bytes, other: bytes, rows: int) -> float:
    """The least cosine of any row with its counterpart, of the first ones; 0 where they do not fit."""
    if not rows or len(one) != len(other) or len(one) % (4 * rows):
        return 0.0
    width = len(one) // rows
    return min(
        _cosine(one[start : start + width], other[start : start + width])
        for start in range(0, min(rows, _MOST_ROWS) * width, width)
    )


def _cosine(one: bytes, other: bytes) -> float:
    left, right = (struct.unpack(f"<{len(each) // 4}f", each) for each in (one, other))
    norms = math.hypot(*left) * math.hypot(*right)
    return sum(a * b for a, b in zip(left, right, strict=True)) / norms if norms else 0.0


def likeness(one: Answered, other: Answered) -> float:
    """Of two answers to the same request."""
    if one.rows:
        return likeness_of_vectors(one.vectors, other.vectors, one.rows)
    if len(one.texts) != len(other.texts):
        return 0.0
    pairs = zip(one.texts, other.texts, strict=True)
    return min((likeness_of_texts(first, second) for first, second in pairs), default=1.0)
