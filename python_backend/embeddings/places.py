"""A slice as an encoder takes it: what is at each place of its rows, and its part in the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backend.embeddings.layers import Floats
from python_backend.embeddings.packing import Slice
from python_backend.embeddings.word_pieces import Tokens

_NOBODY = -1  # whose places at the end of a row are


@dataclass(frozen=True, slots=True)
class Places:
    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    types: NDArray[np.int64]
    texts: NDArray[np.int64]
    pooling: Floats

    @classmethod
    def of(cls, texts: Sequence[Tokens], piece: Slice, pooling: str, padding: int | None = None) -> Places:
        """`padding` is the id that has no position of its own; the positions of all others follow it."""
        shape = (len(piece.rows), piece.width)
        made = cls(
            np.zeros(shape, np.int64),
            np.zeros(shape, np.int64),
            np.zeros(shape, np.int64),
            np.full(shape, _NOBODY, np.int64),
            np.zeros((sum(map(len, piece.rows)), piece.places), np.float32),
        )
        number = 0
        for row, indices in enumerate(piece.rows):
            start = 0
            for index in indices:
                end = start + len(texts[index])
                made._fill(row, slice(start, end), texts[index], padding)
                made.texts[row, start:end] = number
                first = row * piece.width
                made.pooling[number, first + start : first + end] = parts(len(texts[index]), pooling)
                start, number = end, number + 1
        return made

    def inputs(self) -> Mapping[str, NDArray[Any]]:
        return {
            "ids": self.ids,
            "positions": self.positions,
            "types": self.types,
            "texts": self.texts,
            "pooling": self.pooling,
        }

    def _fill(self, row: int, where: slice, text: Tokens, padding: int | None) -> None:
        ids = np.asarray(text.ids, np.int64)
        self.ids[row, where] = ids
        if text.types:
            self.types[row, where] = text.types
        if padding is None:
            self.positions[row, where] = np.arange(len(ids))
        else:
            is_word = ids != padding
            self.positions[row, where] = np.cumsum(is_word) * is_word + padding


def parts(length: int, pooling: str) -> Floats:
    """What each token of a text contributes to its vector."""
    made = np.zeros(length, np.float32)
    if pooling == "cls":
        made[0] = 1
    elif pooling == "lasttoken":
        made[-1] = 1
    elif pooling == "mean_sqrt_len":
        made[:] = length**-0.5
    elif pooling == "weightedmean":
        made[:] = np.arange(1, length + 1) / (length * (length + 1) / 2)
    else:
        made[:] = 1 / length
    return made
