"""Blocks of the KV cache: who holds which, which are free, and which of the free still hold a prefix.

Several tables may hold one block: those whose sequences begin alike. Nobody writes into such a block, nor
into one that can be found by its content; a sequence that must exchanges it for a copy first (`own`). A
block that loses its last holder is free at once. If it can be found, its content stays until the block is
needed, and empty blocks are used before those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Row
from dataclasses import dataclass

from python_backend.engine.kv.prefix_cache import Keep, PrefixCache


class BlockTable:
    """The blocks one sequence holds, in the order of its tokens, and how it came by them over its life."""

    __slots__ = ("blocks", "new_blocks", "reused_blocks")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.new_blocks = 0
        self.reused_blocks = 0

    def __len__(self) -> int:
        return len(self.blocks)


class BlockPool:
    """A fixed number of equal blocks, each empty, idle with a known content, or held; `check` proves it."""

    def __init__(self, total_blocks: int, tokens_per_block: int) -> None:
        if total_blocks < 1 or tokens_per_block < 1:
            raise ValueError(
                f"{total_blocks} blocks of {tokens_per_block} tokens: a pool needs at least one of one"
            )
        self.total_blocks = total_blocks
        self.tokens_per_block = tokens_per_block
        self.new_blocks = 0  # over the pool's life, as is the next
        self.reused_blocks = 0
        # A stack: the block freed last is used next, while its memory is still warm.
        self._empty = list(range(total_blocks - 1, -1, -1))
        self._holders = [0] * total_blocks
        self._prefixes = PrefixCache(total_blocks)
        self._tables: set[BlockTable] = set()

    @property
    def free_blocks(self) -> int:
        return len(self._empty) + self._prefixes.idle_blocks

    @property
    def used_blocks(self) -> int:
        return self.total_blocks - self.free_blocks

    @property
    def cached_blocks(self) -> int:
        """Free blocks that still hold a prefix someone may ask for."""
        return self._prefixes.idle_blocks

    @property
    def capacity_tokens(self) -> int:
        return self.total_blocks * self.tokens_per_block

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.tokens_per_block)

    def advance_to(self, now_ns: int) -> None:
        """What was to be kept until now is ordinary from now on."""
        self._prefixes.advance_to(now_ns)

    def find(self, hashes: Iterable[bytes]) -> list[int]:
        """The blocks that hold the longest known prefix; they may be gone unless shared at once."""
        return self._prefixes.find(hashes)

    def free_after(self, shared: Row[int], blocks: int) -> int:
        """How many blocks would be free if a table came to hold `blocks`, of which `shared` exist already."""
        woken = sum(self._holders[block] == 0 for block in shared)
        return self.free_blocks - woken - (blocks - len(shared))

    def freed_without(self, table: BlockTable, still_held: set[int]) -> int:
        """At least how many blocks would come free without `table` if others went on to hold some."""
        return sum(self._holders[block] == 1 and block not in still_held for block in table.blocks)

    def share(self, table: BlockTable, blocks: Row[int]) -> None:
        """Begins an empty table with blocks that are already computed."""
        if blocks:
            self._tables.add(table)
        for block in blocks:
            if self._holders[block] == 0:
                self._prefixes.wake(block)
            self._holders[block] += 1
        table.blocks.extend(blocks)
        table.reused_blocks += len(blocks)
        self.reused_blocks += len(blocks)

    def grow(self, table: BlockTable, tokens: int) -> bool:
        """Gives `table` room for `tokens` in all; takes every block it needs, or none and returns False."""
        missing = self.blocks_for(tokens) - len(table.blocks)
        if missing <= 0:
            return True
        if missing > self.free_blocks:
            return False
        self._tables.add(table)
        table.blocks.extend(self._take() for _ in range(missing))
        table.new_blocks += missing
        return True

    def own(self, table: BlockTable, index: int) -> BlockCopy:
        """Exchanges a shared block for one that the table may write into once the copy is made."""
        source, target = table.blocks[index], self._take()
        table.blocks[index] = target
        table.new_blocks += 1
        table.reused_blocks -= 1
        self.reused_blocks -= 1
        self._let_go(source)
        return BlockCopy(source, target)

    def publish(self, table: BlockTable, index: int, digest: bytes) -> None:
        """Makes a block findable: it is full, computed, and not written again."""
        self._prefixes.publish(table.blocks[index], digest)

    def keep(self, block: int, keep: Keep) -> None:
        self._prefixes.keep(block, keep)

    def release(self, table: BlockTable, forget: bool = False) -> None:
        """Takes every block of `table` back; with `forget` nobody finds what they hold again."""
        self._tables.discard(table)
        # The end of a prefix is worth nothing without its beginning: it is given up first.
        for block in reversed(table.blocks):
            if forget:
                self._prefixes.forget(block)
            self._let_go(block)
        table.blocks.clear()

    def _take(self) -> int:
        block = self._empty.pop() if self._empty else self._prefixes.evict()
        self._holders[block] = 1
        self.new_blocks += 1
        return block

    def _let_go(self, block: int) -> None:
        self._holders[block] -= 1
        if self._holders[block] == 0:
            if block in self._prefixes:
                self._prefixes.rest(block)
            else:
                self._empty.append(block)

    def check(self) -> None:
        """Raises AssertionError unless every block is in exactly one state and its holders are all known."""
        held = Counter(block for table in self._tables for block in table.blocks)
        if wrong := [block for block, count in enumerate(self._holders) if held[block] != count]:
            raise AssertionError(f"blocks {wrong} have other holders than are counted")
        idle = [block for block in range(self.total_blocks) if self._prefixes.is_idle(block)]
        everywhere = sorted([*self._empty, *idle, *held])
        if everywhere != list(range(self.total_blocks)):
            raise AssertionError(
                f"{self.total_blocks} blocks, but {len(self._empty)} empty, {len(idle)} idle and "
                f"{len(held)} held: {len(everywhere) - len(set(everywhere))} in two places, "
                f"{len(set(range(self.total_blocks)) - set(everywhere))} lost"
            )
        if not all(table.blocks for table in self._tables):
            raise AssertionError("a table without blocks is still registered")
        if empty := [block for block in self._empty if block in self._prefixes]:
            raise AssertionError(f"blocks {empty} are empty and yet can be found")
        self._prefixes.check()


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """A shared block is about to be written: its content moves into a block of the writer's own first."""

    source: int
    target: int
