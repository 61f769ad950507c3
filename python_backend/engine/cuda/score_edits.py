"""What the host has to say about a step's scores: biases, bans and guides, gathered over all rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from python_backend.wire.errors import InflightError

if TYPE_CHECKING:
    from collections.abc import Sequence as Row

    from numpy.typing import NDArray

    from python_backend.engine.guides.ports import AnswerGuide
    from python_backend.engine.sequence import Sequence


class ScoreEdits:
    """`errors` are those of guides that cannot go on, by row."""

    def __init__(self, vocabulary: int) -> None:
        self.errors: dict[int, InflightError] = {}
        self._vocabulary = vocabulary
        self._biases: list[NDArray[np.int32]] = []
        self._bans: list[NDArray[np.int32]] = []
        self._guided: list[int] = []
        self._bits: list[NDArray[np.uint32]] = []

    def add(self, row: int, sequence: Sequence, *, may_end: bool) -> None:
        """Everything the sequence's request says about single tokens."""
        rules = sequence.scoring_for(self._vocabulary).rules
        if len(rules.biased):
            self._biases.append(_triple(row, rules.biased, rules.biases))
        ends = rules.ends if not may_end else ()
        for token_ids in (rules.banned, rules.completing(sequence.tokens), ends):
            if len(token_ids):
                self._bans.append(_triple(row, token_ids, -math.inf))

    def guide(self, row: int, guide: AnswerGuide, end_id: int | None) -> None:
        try:
            bits = guide.bits(end_id)
        except InflightError as error:
            self.errors[row] = error
        else:
            self._guided.append(row)
            self._bits.append(bits)

    @property
    def biases(self) -> NDArray[np.int32] | None:
        return np.concatenate(self._biases, axis=1) if self._biases else None

    @property
    def bans(self) -> NDArray[np.int32] | None:
        return np.concatenate(self._bans, axis=1) if self._bans else None

    @property
    def guided(self) -> tuple[NDArray[np.int32], NDArray[np.int32]] | None:
        """The rows with guides, and for each the allowed tokens as bits of 32-bit words."""
        if not self._guided:
            return None
        return np.array(self._guided, np.int32), np.stack(self._bits).view("<i4")


def _triple(
    row: int, token_ids: NDArray[np.int64] | Row[int], values: NDArray[np.float32] | float
) -> NDArray[np.int32]:
    triple: NDArray[Any] = np.empty((3, len(token_ids)), np.int32)
    triple[0] = row
    triple[1] = token_ids
    triple[2].view(np.float32)[:] = values
    return triple
