"""A second place for prefixes: blocks that leave the device go to the host's memory, and come back by hash.

What moves is gathered while a step is planned, and moved before it is launched: first what leaves, then what
comes. A block of the host that is about to be read is not given to another before that.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockMove:
    """The content of a block of the device, and of the host, becomes the same."""

    on_device: int
    on_host: int


Move = Callable[[list[BlockMove], list[BlockMove]], None]


class HostBlocks:
    """By what they hold, the one unused for longest first; `move` copies what leaves, then what comes."""

    def __init__(self, total_blocks: int, move: Move) -> None:
        if total_blocks < 1:
            raise ValueError(f"{total_blocks} blocks on the host: there must be at least one")
        self.total_blocks = total_blocks
        self.recalled_blocks = 0  # over its life
        self._move = move
        self._blocks: OrderedDict[bytes, int] = OrderedDict()
        self._empty = list(range(total_blocks - 1, -1, -1))
        self._wanted: set[bytes] = set()  # by the step that is being planned
        self._saves: list[BlockMove] = []
        self._loads: dict[int, int] = {}  # host's block by the device's, which may change hands meanwhile

    @property
    def used_blocks(self) -> int:
        return len(self._blocks)

    def save(self, block: int, digest: bytes) -> None:
        """The device needs the block for something else; where nothing on the host may go, it is lost."""
        if digest in self._blocks:
            self._blocks.move_to_end(digest)
            return
        if self._empty:
            place = self._empty.pop()
        else:
            oldest = next((each for each in self._blocks if each not in self._wanted), None)
            if oldest is None:
                return
            place = self._blocks.pop(oldest)
        self._blocks[digest] = place
        # What came in this very step is still where it came from, and is not saved from here.
        self._saves.append(BlockMove(block, place))

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._blocks

    def want(self, digests: Iterable[bytes]) -> None:
        """They stay until the step is launched."""
        self._wanted.update(digests)

    def load(self, block: int, digest: bytes) -> None:
        self._blocks.move_to_end(digest)
        self._loads[block] = self._blocks[digest]
        self.recalled_blocks += 1

    def flush(self) -> None:
        """Moves what was gathered; whatever is launched after this finds it done."""
        if self._saves or self._loads:
            loads = [BlockMove(block, place) for block, place in self._loads.items()]
            self._move(self._saves, loads)
            self._saves, self._loads = [], {}
        self._wanted.clear()

    def check(self) -> None:
        """Raises AssertionError unless every block is empty or holds one thing."""
        everywhere = sorted([*self._empty, *self._blocks.values()])
        if everywhere != list(range(self.total_blocks)):
            raise AssertionError(f"of {self.total_blocks} blocks of the host {len(everywhere)} are counted")
