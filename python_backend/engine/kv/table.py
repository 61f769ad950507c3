"""The blocks of one sequence, and the blocks that a new one could begin with."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Sequence as Row

# A block of the device, or what it would hold, where the host has that.
Place = int | bytes


class BlockTable:
    """The blocks one sequence holds, in the order of its tokens, and how it came by them over its life.

    `blocks` are of the layers that look at everything; `recent` has for each stretch of tokens a block of
    every windowed table. The first `gone` of `recent` lie before the window, and are held no more. What is
    promised to it is `room` stretches in all: the blocks of those that `recent` does not have yet come when
    they are computed.
    """

    __slots__ = ("blocks", "gone", "new_blocks", "recent", "reused_blocks", "room")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.recent: list[tuple[int, ...]] = []
        self.gone = 0
        self.room = 0
        self.new_blocks = 0
        self.reused_blocks = 0

    @property
    def held(self) -> list[int]:
        return [*self.blocks, *chain.from_iterable(self.recent)]

    def at(self, index: int) -> tuple[int, ...]:
        """The blocks of a stretch, of every table that has one there."""
        return (*self.blocks[index : index + 1], *chain.from_iterable(self.recent[index : index + 1]))

    def rows(self) -> Iterator[tuple[Row[int], int]]:
        """Each table's blocks, and the stretch that the first of them is for."""
        if self.blocks:
            yield self.blocks, 0
        for row in zip(*self.recent[self.gone :], strict=True):
            yield row, self.gone

    def clear(self) -> None:
        self.blocks.clear()
        self.recent.clear()
        self.gone = self.room = 0


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first `tokens` of a sequence, computed already; `recent` begins with the stretch `gone`."""

    tokens: int = 0
    blocks: Row[Place] = ()
    recent: Row[tuple[Place, ...]] = ()
    gone: int = 0

    @property
    def places(self) -> list[Place]:
        return [*self.blocks, *chain.from_iterable(self.recent)]


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """A shared block is about to be written: its content moves into a block of the writer's own first."""

    source: int
    target: int
