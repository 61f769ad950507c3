"""Blocks of the KV cache: who holds which, which are free, and which of the free still hold a prefix.

Several tables may hold one block: those whose sequences begin alike. Nobody writes into such a block, nor
into one that can be found by its content; a sequence that must exchanges it for a copy first (`own`). A
block that loses its last holder is free at once. If it can be found, its content stays until the block is
needed, and empty blocks are used before those. What has to go then may go to the host (`host_blocks`).

Where no layer of a model looks back further than a window, a table lets go of the blocks before it (`slide`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Row
from dataclasses import dataclass

from python_backend.engine.kv.host_blocks import HostBlocks
from python_backend.engine.kv.prefix_cache import Keep, PrefixCache


class BlockTable:
    """The blocks one sequence holds, in the order of its tokens, and how it came by them over its life.

    The first `gone` of `blocks` are held no more: they lie before the window, and nobody reads them here.
    """

    __slots__ = ("blocks", "gone", "new_blocks", "reused_blocks")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.gone = 0
        self.new_blocks = 0
        self.reused_blocks = 0

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def held(self) -> list[int]:
        return self.blocks[self.gone :] if self.gone else self.blocks


class BlockPool:
    """A fixed number of equal blocks, each empty, idle with a known content, or held; `check` proves it.

    With `window_tokens` a token is read only by itself and by as many less one that follow it.
    """

    def __init__(
        self,
        total_blocks: int,
        tokens_per_block: int,
        host: HostBlocks | None = None,
        window_tokens: int | None = None,
    ) -> None:
        if total_blocks < 1 or tokens_per_block < 1:
            raise ValueError(
                f"{total_blocks} blocks of {tokens_per_block} tokens: a pool needs at least one of one"
            )
        self.total_blocks = total_blocks
        self.tokens_per_block = tokens_per_block
        self.window_tokens = window_tokens
        self.new_blocks = 0  # over the pool's life, as is the next
        self.reused_blocks = 0
        self.host = host
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

    def find_on_host(self, hashes: Iterable[bytes]) -> list[bytes]:
        """What of them, from the first on, need not be computed though no block holds it."""
        return [] if self.host is None else self.host.find(hashes)

    def free_after(self, shared: Row[int], blocks: int) -> int:
        """How many blocks would be free if a table came to hold `blocks`, of which `shared` exist already."""
        woken = sum(self._holders[block] == 0 for block in shared)
        return self.free_blocks - woken - (blocks - len(shared))

    def freed_without(self, table: BlockTable, still_held: set[int]) -> int:
        """At least how many blocks would come free without `table` if others went on to hold some."""
        return sum(self._holders[block] == 1 and block not in still_held for block in table.held)

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

    def recall(self, table: BlockTable, index: int, digest: bytes) -> None:
        """Fills a new block of the table with what the host holds; it is there before the next step."""
        assert self.host is not None
        self.host.load(table.blocks[index], digest)
        self._prefixes.publish(table.blocks[index], digest)
        table.new_blocks -= 1
        table.reused_blocks += 1
        self.reused_blocks += 1

    def flush(self) -> None:
        """Before a step is launched: what it finds, and what it takes the place of, is moved."""
        if self.host is not None:
            self.host.flush()

    def publish(self, table: BlockTable, index: int, digest: bytes) -> None:
        """Makes a block findable: it is full, computed, and not written again."""
        self._prefixes.publish(table.blocks[index], digest)

    def keep(self, block: int, keep: Keep) -> None:
        self._prefixes.keep(block, keep)

    def slide(self, table: BlockTable, computed_tokens: int) -> None:
        """Lets go of what the tokens still to be computed do not look back at; the last block stays."""
        if self.window_tokens is None:
            return
        first_seen = computed_tokens + 1 - self.window_tokens
        gone = min(first_seen // self.tokens_per_block, len(table.blocks) - 1)
        for index in range(table.gone, gone):
            self._let_go(table.blocks[index])
        table.gone = max(table.gone, gone)

    def forget(self, digests: Iterable[bytes]) -> None:
        """Nobody finds these again."""
        for block in self._prefixes.known(digests):
            is_idle = self._prefixes.is_idle(block)
            if is_idle:
                self._prefixes.wake(block)
                self._empty.append(block)
            self._prefixes.forget(block)

    def release(self, table: BlockTable, forget: bool = False) -> None:
        """Takes every block of `table` back; with `forget` nobody finds what they hold again."""
        self._tables.discard(table)
        # The end of a prefix is worth nothing without its beginning: it is given up first.
        for block in reversed(table.held):
            if forget:
                self._prefixes.forget(block)
            self._let_go(block)
        table.blocks.clear()
        table.gone = 0

    def _take(self) -> int:
        if self._empty:
            block = self._empty.pop()
        else:
            block, digest = self._prefixes.evict()
            if self.host is not None:
                self.host.save(block, digest)
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
        held = Counter(block for table in self._tables for block in table.held)
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
        if not all(table.held for table in self._tables):
            raise AssertionError("a table without blocks is still registered")
        if empty := [block for block in self._empty if block in self._prefixes]:
            raise AssertionError(f"blocks {empty} are empty and yet can be found")
        self._prefixes.check()
        if self.host is not None:
            self.host.check()


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """A shared block is about to be written: its content moves into a block of the writer's own first."""

    source: int
    target: int
