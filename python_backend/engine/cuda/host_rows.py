"""The rows of a step as the host plans them, before they are told to the device."""

from __future__ import annotations

from collections.abc import Sequence as Row
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from python_backend.engine.scheduling.plan import Chunk

    Numbers = NDArray[np.int32]

UNKNOWN = -1  # a token that the device has chosen itself, and remembers


@dataclass(frozen=True, slots=True)
class HostRows:
    """First the `singles`, rows that are chunks of their own; then those of longer chunks; then nobody's.

    `first_rows` has one entry more than there are longer chunks, `chunk_slots`, `counts` and `starts`.
    """

    tokens: Numbers
    slots: Numbers
    positions: Numbers
    singles: int
    chunk_slots: Numbers
    first_rows: Numbers
    starts: Numbers

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def counts(self) -> Numbers:
        return np.diff(self.first_rows)

    def filled_up(self, size: int, slot: int) -> HostRows:
        """With rows of nobody, who has this slot."""
        more = size - len(self)
        return replace(
            self,
            tokens=np.append(self.tokens, np.zeros(more, np.int32)),
            slots=np.append(self.slots, np.full(more, slot, np.int32)),
            positions=np.append(self.positions, np.zeros(more, np.int32)),
        )


def host_rows(chunks: Row[Chunk], slots: Row[int]) -> HostRows:
    """Of chunks in the order of `HostRows`, each with its slot."""
    counts = np.array([chunk.count for chunk in chunks], np.int32)
    starts = np.array([chunk.start for chunk in chunks], np.int32)
    numbers = np.array(slots, np.int32)
    singles = int((counts == 1).sum())
    ends = np.cumsum(counts, dtype=np.int32)
    offsets = np.arange(ends[-1], dtype=np.int32) - np.repeat(ends - counts, counts)
    tokens = [UNKNOWN] * singles
    for chunk in chunks[singles:]:
        tokens += chunk.token_ids
    return HostRows(
        np.array(tokens, np.int32),
        np.repeat(numbers, counts),
        np.repeat(starts, counts) + offsets,
        singles,
        numbers[singles:],
        np.append(np.int32(singles), ends[singles:]),
        starts[singles:],
    )
