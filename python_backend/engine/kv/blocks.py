"""Blocks of the KV cache: who holds which, which are free, and which of the free still hold a prefix.

Several tables may hold one block: those whose sequences begin alike. Nobody writes into such a block, nor
into one that can be found by its content; a sequence that must exchanges it for a copy first (`own`). A
block that loses its last holder is free at once. If it can be found, its content stays until the block is
needed, and empty blocks are used before those. What has to go then may go to the host (`host_blocks`).

Layers with a window have blocks of their own (`layout`). A table lets go of those before it (`slide`), and
gets the next when they are about to be computed (`reach`); until then they are only promised. So a prefix is
known where layers that look at everything have all of it, and the others what its last window holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Row
from itertools import chain, takewhile

from python_backend.engine.kv.host_blocks import HostBlocks
from python_backend.engine.kv.prefix_cache import Keep, PrefixCache
from python_backend.engine.kv.table import BlockCopy, BlockTable, Place, Prefix
from python_backend.engine.kv.window_claims import Window, WindowClaims

# Of a sequence where no layer looks back further than a window.
_ENDLESS_TOKENS = 1 << 40
NOTHING = Prefix()


class BlockPool:
    """A fixed number of equal blocks, each empty, idle with a known content, or held; `check` proves it."""

    def __init__(
        self,
        total_blocks: int,
        tokens_per_block: int,
        host: HostBlocks | None = None,
        window: Window | None = None,
    ) -> None:
        if total_blocks < 1 or tokens_per_block < 1:
            raise ValueError(
                f"{total_blocks} blocks of {tokens_per_block} tokens: a pool needs at least one of one"
            )
        self.total_blocks = total_blocks
        self.tokens_per_block = tokens_per_block
        self.window = window
        self.new_blocks = 0  # over the pool's life, as is the next
        self.reused_blocks = 0
        self.host = host
        # A stack: the block freed last is used next, while its memory is still warm.
        self._empty = list(range(total_blocks - 1, -1, -1))
        self._holders = [0] * total_blocks
        self._prefixes = PrefixCache(total_blocks)
        self._tables: set[BlockTable] = set()
        self._keeps_all = window is None or not window.is_all  # some layers do
        self._kept_whole = 0  # blocks that such layers hold
        self._claims = WindowClaims(window, tokens_per_block)

    @property
    def free_blocks(self) -> int:
        return len(self._empty) + self._prefixes.idle_blocks

    @property
    def used_blocks(self) -> int:
        return self.total_blocks - self.free_blocks

    @property
    def spare_blocks(self) -> int:
        """Free blocks that are promised to nobody."""
        return self.total_blocks - self._kept_whole - self._claims.needed()

    @property
    def cached_blocks(self) -> int:
        """Free blocks that still hold a prefix someone may ask for."""
        return self._prefixes.idle_blocks

    @property
    def capacity_tokens(self) -> int:
        """Of one sequence that has all blocks."""
        stretches = self._claims.longest(self.total_blocks, int(self._keeps_all))
        return _ENDLESS_TOKENS if stretches is None else stretches * self.tokens_per_block

    @property
    def window_room_tokens(self) -> int:
        """What one sequence is promised of windowed layers, at most."""
        return self._claims.most_of_one * self.tokens_per_block

    def tokens_held(self, sequence_tokens: int) -> int:
        """At once, in sequences so long that share nothing."""
        stretches = self.blocks_for(sequence_tokens)
        sequences = self._claims.most_sequences(self.total_blocks, stretches, int(self._keeps_all))
        return sequences * sequence_tokens

    @property
    def blocks_per_stretch(self) -> int:
        """What as many tokens as a block has take of all tables, while they are in every window."""
        return self._keeps_all + self._claims.tables

    def blocks_for(self, tokens: int) -> int:
        """Of one table."""
        return -(-tokens // self.tokens_per_block)

    def advance_to(self, now_ns: int) -> None:
        """What was to be kept until now is ordinary from now on."""
        self._prefixes.advance_to(now_ns)

    def find(self, hashes: Row[bytes], uses_host: bool = False) -> Prefix:
        """The longest known prefix; its blocks may be gone unless shared at once."""
        host = self.host if uses_host else None

        def is_known(digest: bytes) -> bool:
            return self._prefixes.find(digest) is not None or (host is not None and digest in host)

        count, first = sum(1 for _ in takewhile(is_known, hashes)) if self._keeps_all else len(hashes), 0
        blocks: list[Place] = []
        recent: list[tuple[Place, ...]] = []
        if self.window is not None:
            count = self._claims.longest_seen(
                count, lambda index: all(is_known(key) for key in self._recent(hashes[index]))
            )
            first = self._claims.first_seen(count * self.tokens_per_block)
            recent = [tuple(map(self._place, self._recent(digest))) for digest in hashes[first:count]]
        if self._keeps_all:
            blocks = [self._place(digest) for digest in hashes[:count]]
        found = Prefix(count * self.tokens_per_block, blocks, recent, first)
        if host is not None:
            host.want(place for place in found.places if isinstance(place, bytes))
        return found

    def fork(self, table: BlockTable, tokens: int) -> Prefix | None:
        """The first tokens of a sequence that has computed them; None where it has let go of some by now."""
        first, count = self._claims.first_seen(tokens), self.blocks_for(tokens)
        if table.gone > first:
            return None
        return Prefix(tokens, table.blocks[:count], table.recent[first:count], first)

    def spare_after(self, table: BlockTable, tokens: int, prefix: Prefix = NOTHING, copies: int = 0) -> int:
        """Blocks that would be promised to nobody if `table` began with a prefix and had so much room."""
        wanted = max(self.blocks_for(tokens), table.room)
        spare = self.total_blocks - self._kept_whole - self._claims.needed(table.room, wanted)
        if not self._keeps_all:
            return spare
        held = sum(isinstance(place, int) and self._holders[place] > 0 for place in prefix.blocks)
        return spare - (wanted - len(table.blocks) - held) - copies

    def spared_without(self, table: BlockTable, still_held: set[Place]) -> int:
        """At least how many more would be promised to nobody without `table` if others held some of it."""
        freed = sum(self._holders[block] == 1 and block not in still_held for block in table.blocks)
        return freed + self._claims.given_up(table.room)

    def share(self, table: BlockTable, prefix: Prefix) -> None:
        """Begins an empty table with a prefix; what the host has of it is there before the next step."""
        for places, whole in ((prefix.blocks, True), (chain.from_iterable(prefix.recent), False)):
            for place in places:
                if isinstance(place, int):
                    self._hold(place, whole)
        table.blocks += [self._block(place, True) for place in prefix.blocks]
        table.recent += [()] * prefix.gone
        table.recent += [tuple(self._block(place, False) for place in each) for each in prefix.recent]
        table.gone = prefix.gone
        reused = len(prefix.places)
        table.reused_blocks += reused
        self.reused_blocks += reused

    def grow(self, table: BlockTable, tokens: int) -> bool:
        """Gives `table` room for `tokens` in all: everything it needs, or nothing and returns False."""
        wanted = self.blocks_for(tokens)
        if wanted <= table.room:
            return True
        if self.spare_after(table, tokens) < 0:
            return False
        self._tables.add(table)
        self._claims.change(table.room, wanted)
        table.room = wanted
        if self._keeps_all:
            missing = wanted - len(table.blocks)
            table.blocks.extend(self._take(True) for _ in range(missing))
            table.new_blocks += missing
        return True

    def reach(self, table: BlockTable, tokens: int) -> None:
        """Before they are computed: takes the blocks of windowed layers that `table` has room for."""
        for _ in range(len(table.recent), self.blocks_for(tokens) if self.window else 0):
            table.recent.append(tuple(self._take(False) for _ in range(self._claims.tables)))
            table.new_blocks += self._claims.tables

    def own(self, table: BlockTable, index: int) -> list[BlockCopy]:
        """Exchanges the shared blocks of a stretch for some that may be written once the copies are made."""
        copies = []
        if self._keeps_all:
            copies.append(self._exchange(table.blocks[index], True))
            table.blocks[index] = copies[0].target
        if self.window is not None:
            recent = [self._exchange(block, False) for block in table.recent[index]]
            table.recent[index] = tuple(copy.target for copy in recent)
            copies += recent
        table.new_blocks += len(copies)
        table.reused_blocks -= len(copies)
        self.reused_blocks -= len(copies)
        return copies

    def flush(self) -> None:
        """Before a step is launched: what it finds, and what it takes the place of, is moved."""
        if self.host is not None:
            self.host.flush()

    def publish(self, table: BlockTable, index: int, digest: bytes) -> None:
        """Makes a stretch findable: it is full, computed, and not written again."""
        if self._keeps_all:
            self._prefixes.publish(table.blocks[index], digest)
        for blocks in table.recent[index : index + 1]:
            for block, key in zip(blocks, self._recent(digest), strict=False):  # none of what has gone
                self._prefixes.publish(block, key)

    def keep(self, table: BlockTable, index: int, keep: Keep) -> None:
        for block in table.at(index):
            self._prefixes.keep(block, keep)

    def slide(self, table: BlockTable, computed_tokens: int) -> None:
        """Lets go of what the tokens still to be computed do not look back at."""
        if self.window is None:
            return
        gone = min(self._claims.first_seen(computed_tokens), len(table.recent))
        for index in range(table.gone, gone):
            for block in table.recent[index]:
                self._let_go(block, False)
            table.recent[index] = ()
        table.gone = max(table.gone, gone)

    def forget(self, digests: Iterable[bytes]) -> None:
        """Nobody finds again what windowed layers had of these, and have let go of."""
        for block in self._prefixes.known(key for digest in digests for key in self._recent(digest)):
            is_idle = self._prefixes.is_idle(block)
            if is_idle:
                self._prefixes.wake(block)
                self._empty.append(block)
            self._prefixes.forget(block)

    def release(self, table: BlockTable, forget: bool = False) -> None:
        """Takes every block of `table` back; with `forget` nobody finds what they hold again."""
        self._tables.discard(table)
        self._claims.change(table.room, 0)
        if forget:
            for block in table.held:
                self._prefixes.forget(block)
        # The end of a prefix is worth nothing without its beginning: it is given up first.
        for block in reversed(table.blocks):
            self._let_go(block, True)
        for block in chain.from_iterable(reversed(table.recent)):
            self._let_go(block, False)
        table.clear()

    def _recent(self, digest: bytes) -> list[bytes]:
        """What the windowed layers' blocks of a stretch are known by."""
        return [digest + bytes([number]) for number in range(self._claims.tables)]

    def _place(self, digest: bytes) -> Place:
        block = self._prefixes.find(digest)
        return digest if block is None else block

    def _take(self, whole: bool) -> int:
        if self._empty:
            block = self._empty.pop()
        else:
            block, digest = self._prefixes.evict()
            if self.host is not None:
                self.host.save(block, digest)
        self._holders[block] = 1
        self._kept_whole += whole
        self.new_blocks += 1
        return block

    def _hold(self, block: int, whole: bool) -> None:
        if self._holders[block] == 0:
            self._prefixes.wake(block)
            self._kept_whole += whole
        self._holders[block] += 1

    def _let_go(self, block: int, whole: bool) -> None:
        self._holders[block] -= 1
        if self._holders[block] == 0:
            self._kept_whole -= whole
            if block in self._prefixes:
                self._prefixes.rest(block)
            else:
                self._empty.append(block)

    def _exchange(self, source: int, whole: bool) -> BlockCopy:
        target = self._take(whole)
        self._let_go(source, whole)
        return BlockCopy(source, target)

    def _block(self, place: Place, whole: bool) -> int:
        """One that is held: as it is, or a new one for what the host has."""
        if isinstance(place, int):
            return place
        assert self.host is not None
        block = self._take(whole)
        self.host.load(block, place)
        self._prefixes.publish(block, place)
        return block

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
        if not all(table.room for table in self._tables):
            raise AssertionError("a table without room is still registered")
        self._claims.check([table.room for table in self._tables])
        whole = {block for table in self._tables for block in table.blocks}
        if len(whole) != self._kept_whole or self.spare_blocks < 0:
            raise AssertionError(f"{self._kept_whole} blocks for all tokens, and {self.spare_blocks} spare")
        if empty := [block for block in self._empty if block in self._prefixes]:
            raise AssertionError(f"blocks {empty} are empty and yet can be found")
        self._prefixes.check()
        if self.host is not None:
            self.host.check()
