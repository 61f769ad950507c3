"""Blocks of the KV cache: who holds which, and which are free."""

from __future__ import annotations


class BlockTable:
    """The blocks one sequence holds, in the order of its tokens."""

    __slots__ = ("blocks",)

    def __init__(self) -> None:
        self.blocks: list[int] = []

    def __len__(self) -> int:
        return len(self.blocks)


class BlockPool:
    """A fixed number of equal blocks. Every block is free or in exactly one table; `check` proves it."""

    def __init__(self, total_blocks: int, tokens_per_block: int) -> None:
        if total_blocks < 1 or tokens_per_block < 1:
            raise ValueError(
                f"{total_blocks} blocks of {tokens_per_block} tokens: a pool needs at least one of one"
            )
        self.total_blocks = total_blocks
        self.tokens_per_block = tokens_per_block
        # A stack: the block freed last is used next, while its memory is still warm.
        self._free = list(range(total_blocks - 1, -1, -1))
        self._tables: set[BlockTable] = set()

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    @property
    def used_blocks(self) -> int:
        return self.total_blocks - len(self._free)

    @property
    def capacity_tokens(self) -> int:
        return self.total_blocks * self.tokens_per_block

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.tokens_per_block)

    def grow(self, table: BlockTable, tokens: int) -> bool:
        """Gives `table` room for `tokens` in all; takes every block it needs, or none and returns False."""
        missing = self.blocks_for(tokens) - len(table.blocks)
        if missing <= 0:
            return True
        if missing > len(self._free):
            return False
        self._tables.add(table)
        table.blocks.extend(self._free.pop() for _ in range(missing))
        return True

    def release(self, table: BlockTable) -> None:
        """Takes every block of `table` back; an empty table is left as it is."""
        self._tables.discard(table)
        self._free.extend(reversed(table.blocks))
        table.blocks.clear()

    def check(self) -> None:
        """Raises AssertionError unless every block is in exactly one place and every table known."""
        held = [block for table in self._tables for block in table.blocks]
        everywhere = sorted(self._free + held)
        if everywhere != list(range(self.total_blocks)):
            raise AssertionError(
                f"{self.total_blocks} blocks, but {len(self._free)} free and {len(held)} held: "
                f"{len(everywhere) - len(set(everywhere))} in two places, "
                f"{len(set(range(self.total_blocks)) - set(everywhere))} lost"
            )
        if not all(table.blocks for table in self._tables):
            raise AssertionError("a table without blocks is still registered")
