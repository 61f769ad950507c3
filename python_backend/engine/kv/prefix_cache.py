"""Computed blocks found again by what they hold, and the order in which idle ones are given up.

A full block is known by the hash of its tokens and its parent's hash, so that one hash stands for a whole
prefix. Chains begin at a root made of the request's salt: without the salt no chain can be followed, and
requests of different salts share nothing, except for a beginning that the operator has named: its chain is
everybody's, and the salt comes in behind it. Of the idle blocks, those of the lowest retention priority go
first, and among them the one unused for longest.
"""

from __future__ import annotations

import heapq
import itertools
from array import array
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from python_backend.engine.request import Retention

if TYPE_CHECKING:
    from python_backend.engine.request import GenerationRequest

_HASH_BYTES, _TOKEN_BYTES = 16, 4
# Hashes of so many pages of so many blocks are remembered: some 15 MB of them.
_PAGE_BLOCKS, _MOST_PAGES = 64, 4096
_NS_PER_MS = 1_000_000
# What requests may keep at the cost of everybody's cache: for so long, and so much of it in all.
LONGEST_KEEP_MS = 600_000
MOST_KEPT = 0.5
_SLACK = 64


def _hash(content: bytes, person: bytes = b"") -> bytes:
    return blake2b(content, digest_size=_HASH_BYTES, person=person).digest()


def root_hash(salt: str) -> bytes:
    return _hash(salt.encode(), b"root")


# Of the chains that everybody shares; no salt has the same root.
SHARED_ROOT = _hash(b"", b"shared")


def first_hashes(request: GenerationRequest, adapter: bytes = b"") -> list[bytes]:
    """The root of its chain; what an adapter has had a part in is found by nobody without that adapter."""
    root = SHARED_ROOT if request.shared_tokens else root_hash(request.cache_salt)
    return [_hash(root + adapter, b"adapter") if adapter else root]


class Chains:
    """The hashes of full blocks, each of its tokens and its parent's hash.

    A long prompt comes back with every turn of a conversation. Its blocks are hashed by pages of many, and
    what a page's blocks have come to is remembered under a hash of the whole page and its parent.
    """

    def __init__(self, tokens_per_block: int) -> None:
        self._size = tokens_per_block
        self._pages: OrderedDict[bytes, list[bytes]] = OrderedDict()

    def extend(
        self, hashes: list[bytes], token_ids: array[int], shared_blocks: int | None = None, salt: str = ""
    ) -> None:
        """Hashes what is new; `hashes` begins with a root, entry i + 1 stands for block i.

        Behind `shared_blocks`, where there are any, the chain goes on as the salt's own.
        """
        known, full = len(hashes) - 1, len(token_ids) // self._size
        if known == full:
            return
        if shared_blocks is not None and known <= shared_blocks < full:
            self._extend(hashes, token_ids[known * self._size : shared_blocks * self._size])
            first = (shared_blocks + 1) * self._size
            salted = hashes[-1] + root_hash(salt)
            hashes.append(_hash(salted + token_ids[first - self._size : first].tobytes()))
            known = shared_blocks + 1
        self._extend(hashes, token_ids[known * self._size : full * self._size])

    def _extend(self, hashes: list[bytes], token_ids: array[int]) -> None:
        content, page_bytes = token_ids.tobytes(), _PAGE_BLOCKS * self._size * _TOKEN_BYTES
        for begin in range(0, len(content), page_bytes):
            page = content[begin : begin + page_bytes]
            hashed = self._page if len(page) == page_bytes else self._hashed
            hashes += hashed(hashes[-1], page)

    def _page(self, parent: bytes, page: bytes) -> list[bytes]:
        name = _hash(parent + page, b"page")
        found = self._pages.get(name)
        if found is None:
            found = self._pages[name] = self._hashed(parent, page)
            if len(self._pages) > _MOST_PAGES:
                self._pages.popitem(last=False)
        else:
            self._pages.move_to_end(name)
        return found

    def _hashed(self, parent: bytes, content: bytes) -> list[bytes]:
        found, block_bytes = [], self._size * _TOKEN_BYTES
        for begin in range(0, len(content), block_bytes):
            parent = _hash(parent + content[begin : begin + block_bytes])
            found.append(parent)
        return found


@dataclass(frozen=True, slots=True)
class Keep:
    """How much an idle block is worth keeping, and for how long before it is an ordinary one again."""

    priority: int
    duration_ms: int | None = None


_ORDINARY = Keep(Retention.ORDINARY_PRIORITY)
_USUAL = Retention()


def keep_of(request: GenerationRequest, first_token: int) -> Keep | None:
    """What the request says about the block that begins at this token; None: nothing.

    It has no say over blocks that others share.
    """
    retention = request.retention
    if retention == _USUAL or first_token < request.shared_tokens:
        return None
    if first_token >= len(request.prompt_ids):
        return Keep(retention.decode_priority, retention.decode_duration_ms)
    for part in retention.ranges:
        if part.start <= first_token and (part.end is None or first_token < part.end):
            return Keep(part.priority, part.duration_ms)
    return None


# Priority, time of last use, block: the smallest goes first.
_Entry = tuple[int, int, int]


class EvictionOrder:
    """Idle blocks, the one to give up first at the front.

    An entry that is no longer true stays in its heap until it comes up; a heap in which such entries
    outnumber the others is built anew.
    """

    def __init__(self, most_kept: int = 1 << 62) -> None:
        self._most_kept = most_kept
        self._kept: set[int] = set()  # above the ordinary
        self._entries: dict[int, _Entry] = {}
        self._order: list[_Entry] = []
        self._expiries: list[tuple[int, _Entry]] = []
        self._uses = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, block: int) -> bool:
        return block in self._entries

    @property
    def blocks(self) -> list[int]:
        return list(self._entries)

    def add(self, block: int, priority: int, expires_ns: int | None) -> None:
        if priority > _ORDINARY.priority:
            if len(self._kept) < self._most_kept:
                self._kept.add(block)
            else:
                priority, expires_ns = _ORDINARY.priority, None
        entry = (priority, next(self._uses), block)
        self._push(entry)
        if expires_ns is not None:
            heapq.heappush(self._expiries, (expires_ns, entry))
            if len(self._expiries) > 2 * len(self._entries) + _SLACK:
                self._expiries = [item for item in self._expiries if self._is_true(item[1])]
                heapq.heapify(self._expiries)

    def remove(self, block: int) -> None:
        del self._entries[block]
        self._kept.discard(block)

    def pop(self) -> int:
        while True:
            entry = heapq.heappop(self._order)
            if self._is_true(entry):
                self.remove(entry[2])
                return entry[2]

    def expire(self, now_ns: int) -> list[int]:
        """Makes ordinary what was to be kept until now, without a change to when it was used last."""
        expired = []
        while self._expiries and self._expiries[0][0] <= now_ns:
            _, entry = heapq.heappop(self._expiries)
            if self._is_true(entry):
                _, use, block = entry
                self._kept.discard(block)
                self._push((_ORDINARY.priority, use, block))
                expired.append(block)
        return expired

    def _push(self, entry: _Entry) -> None:
        self._entries[entry[2]] = entry
        heapq.heappush(self._order, entry)
        if len(self._order) > 2 * len(self._entries) + _SLACK:
            self._order = list(self._entries.values())
            heapq.heapify(self._order)

    def _is_true(self, entry: _Entry) -> bool:
        return self._entries.get(entry[2]) == entry


class PrefixCache:
    """Blocks under their hashes: some held by sequences, the others idle until someone finds or evicts them.

    What a request says about keeping a block holds until another request says otherwise or its time is
    over. The time runs from the moment the block's last holder leaves. Above the ordinary priority it is
    limited, and so is the share of the blocks: nobody can fill the cache with what is never given up.
    """

    def __init__(self, blocks: int) -> None:
        self._blocks: dict[bytes, int] = {}
        self._hashes: dict[int, bytes] = {}
        self._keeps: dict[int, Keep] = {}
        self._idle = EvictionOrder(int(blocks * MOST_KEPT))
        self._now_ns = 0

    def __contains__(self, block: int) -> bool:
        return block in self._hashes

    @property
    def idle_blocks(self) -> int:
        return len(self._idle)

    def is_idle(self, block: int) -> bool:
        return block in self._idle

    def advance_to(self, now_ns: int) -> None:
        self._now_ns = now_ns
        for block in self._idle.expire(now_ns):
            del self._keeps[block]

    def find(self, digest: bytes) -> int | None:
        return self._blocks.get(digest)

    def known(self, hashes: Iterable[bytes]) -> list[int]:
        """Those of the blocks that can be found, whatever of the prefix before them is gone."""
        return [self._blocks[digest] for digest in hashes if digest in self._blocks]

    def publish(self, block: int, digest: bytes) -> None:
        """Makes a computed block findable, unless another one with the same content is already."""
        if digest not in self._blocks:
            self._blocks[digest] = block
            self._hashes[block] = digest

    def keep(self, block: int, keep: Keep) -> None:
        if block in self._hashes:
            self._keeps[block] = keep

    def forget(self, block: int) -> None:
        """Makes a block unfindable; its holders keep it."""
        if (digest := self._hashes.pop(block, None)) is not None:
            del self._blocks[digest]
            self._keeps.pop(block, None)

    def rest(self, block: int) -> None:
        """Nobody holds the block any more."""
        keep = self._keeps.get(block, _ORDINARY)
        duration_ms = keep.duration_ms
        if keep.priority > _ORDINARY.priority:
            duration_ms = LONGEST_KEEP_MS if duration_ms is None else min(duration_ms, LONGEST_KEEP_MS)
        expires_ns = None if duration_ms is None else self._now_ns + duration_ms * _NS_PER_MS
        self._idle.add(block, keep.priority, expires_ns)

    def wake(self, block: int) -> None:
        """Someone holds the block again."""
        self._idle.remove(block)

    def evict(self) -> tuple[int, bytes]:
        """Gives up the idle block that is worth least, for another use; and what it held."""
        block = self._idle.pop()
        digest = self._hashes[block]
        self.forget(block)
        return block, digest

    def check(self) -> None:
        """Raises AssertionError unless hashes and blocks agree and every idle block can be found."""
        if {block: digest for digest, block in self._blocks.items()} != self._hashes:
            raise AssertionError("hashes and blocks of the prefix cache disagree")
        if strays := [block for block in self._idle.blocks if block not in self._hashes]:
            raise AssertionError(f"blocks {strays} are idle but cannot be found")
