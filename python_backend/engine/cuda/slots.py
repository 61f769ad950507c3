"""What is kept on the device for each running sequence, and where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Sequence as Row

    from python_backend.engine.cuda.pinned_memory import Staging
    from python_backend.engine.kv.table import BlockTable
    from python_backend.engine.scheduling.plan import Chunk
    from python_backend.engine.sequence import Sequence


@dataclass(slots=True, eq=False)
class Slot:
    """`known_blocks` and `known_recent` of what the sequence's table has are on the device.

    `next_position` is that of the token which the device chose last and remembers; -1: none yet.
    """

    number: int
    known_blocks: int = 0
    known_recent: int = 0
    next_position: int = -1


class Slots:
    """A slot on the device for each sequence of the batch, and one more (`dummy`) for rows without any."""

    def __init__(
        self, count: int, table_blocks: int, scratch_block: int, device: torch.device, tables: int = 1
    ) -> None:
        self.dummy = count
        self.last_tokens = torch.zeros(count + 1, dtype=torch.int32, device=device)
        self.block_tables = torch.full(
            (tables, count + 1, table_blocks), scratch_block, dtype=torch.int32, device=device
        )
        # The places of their adapters; -1: none.
        self.adapters = torch.full((count + 1,), -1, dtype=torch.int32, device=device)
        self._worn = [-1] * count
        self._flat_tables = self.block_tables.view(-1)
        self._table_blocks = table_blocks
        self._table_size = (count + 1) * table_blocks
        self._free = list(range(count - 1, -1, -1))
        self._of: dict[Sequence, Slot] = {}

    def __len__(self) -> int:
        return len(self._of)

    def of(self, sequence: Sequence) -> Slot:
        return self._of[sequence]

    def take(self, chunks: Row[Chunk]) -> list[tuple[Slot, Sequence]]:
        """A slot for every sequence that has none; returns those, for what else has to be prepared."""
        newcomers = [chunk.sequence for chunk in chunks if chunk.sequence not in self._of]
        if len(newcomers) > len(self._free):
            raise RuntimeError(f"{len(newcomers)} more sequences, but {len(self._free)} free slots")
        taken = [(Slot(self._free.pop()), sequence) for sequence in newcomers]
        self._of.update((sequence, slot) for slot, sequence in taken)
        return taken

    def release(self, sequence: Sequence) -> None:
        """Its rows may still be in a launched step, which comes before whatever is launched from now on."""
        slot = self._of.pop(sequence, None)
        if slot is not None:
            self._free.append(slot.number)

    def update_tables(self, chunks: Row[Chunk], staging: Staging) -> None:
        """Tells the device about blocks that sequences got since it was told last."""
        places: list[int] = []
        blocks: list[int] = []
        told: list[tuple[Slot, BlockTable]] = []
        for chunk in chunks:
            table, slot = chunk.sequence.table, self._of[chunk.sequence]
            if slot.known_blocks == len(table.blocks) and slot.known_recent == len(table.recent):
                continue
            for first, begin, row in self._news(slot, table):
                places.extend(range(first + begin, first + begin + len(row)))
                blocks.extend(row)
            told.append((slot, table))
        if places:
            where = staging.upload(np.array(places))
            self._flat_tables.index_copy_(0, where, staging.upload(np.array(blocks, np.int32)))
        for slot, table in told:
            slot.known_blocks, slot.known_recent = len(table.blocks), len(table.recent)

    def _news(self, slot: Slot, table: BlockTable) -> Iterator[tuple[int, int, Row[int]]]:
        """Where each table of the slot begins, and what follows in it from which block on."""
        first, begin = slot.number * self._table_blocks, max(slot.known_recent, table.gone)
        if table.blocks:
            yield first, slot.known_blocks, table.blocks[slot.known_blocks :]
            first += self._table_size
        for row in zip(*table.recent[begin:], strict=True):
            yield first, begin, row
            first += self._table_size

    def set_adapters(self, taken: Row[tuple[Slot, Sequence]], staging: Staging) -> None:
        """Of sequences that have just got their slots."""
        news = {}
        for slot, sequence in taken:
            place = -1 if sequence.adapter is None else sequence.adapter.place
            if self._worn[slot.number] != place:
                self._worn[slot.number] = news[slot.number] = place
        if news:
            numbers = staging.upload(np.array(list(news)))
            places = staging.upload(np.array(list(news.values()), np.int32))
            self.adapters.index_copy_(0, numbers, places)

    def set_tokens(self, tokens: dict[int, int], staging: Staging) -> None:
        """The last tokens of some slots, where the device did not choose them itself."""
        if tokens:
            numbers = staging.upload(np.array(list(tokens)))
            values = staging.upload(np.array(list(tokens.values()), np.int32))
            self.last_tokens.index_copy_(0, numbers, values)
