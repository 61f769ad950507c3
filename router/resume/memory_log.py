"""Kept answers in the memory of this router, bounded by tenant."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from router.resume.event_log import Claim, Claimed, Moved, NotKept

# What an event takes in memory beside its bytes, and what an answer does beside its events.
_EVENT_BYTES = 100
_ANSWER_BYTES = 1000
# Of an answer for which there is no room, so many events wait for a reader that is behind.
_MOST_BEHIND = 4096


@dataclass(frozen=True, slots=True)
class LogLimits:
    """`kept_s`: for so long after the last one; less where there is no room for others'."""

    bytes_per_tenant: int = 16 << 20
    bytes_in_all: int = 256 << 20
    kept_s: float = 600.0


@dataclass(slots=True, eq=False)
class _Reader:
    at: int  # the number of the event that it wants next


@dataclass(slots=True, eq=False)
class KeptAnswer:
    tenant: str
    name: str
    log: MemoryEventLog
    claim: Claim | None = None
    first: int = 0  # the number of the first event that is there
    events: list[bytes] = field(default_factory=list)
    size_bytes: int = 0
    ended_s: float | None = None
    last: bytes = b""
    is_dropped: bool = False
    is_forgotten: bool = False
    is_taken: bool = False
    is_shared: bool = False
    readers: list[_Reader] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def end(self) -> int:
        return self.first + len(self.events)

    def add(self, events: Sequence[bytes], basis: bytes = b"") -> None:
        size_bytes = sum(map(len, events)) + _EVENT_BYTES * len(events)
        if not self.is_dropped:
            self.log.make_room(self, size_bytes)
        self.events += events
        if self.is_dropped:
            self._trim()
        self.wake()

    def close(self) -> None:
        self.ended_s = self.log.clock()
        self.log.ended(self)
        self.wake()

    def leave(self, last: bytes, is_kept: bool) -> None:
        self.last = last
        self.log.release(self)
        self.close()

    async def is_followed(self) -> bool:
        return False

    def taken(self) -> None:
        """Another router goes on with it."""
        self.is_taken = True
        self.log.release(self)
        self.close()

    def drop(self) -> None:
        """Only what somebody is about to read stays."""
        self.is_dropped = True
        self._trim()
        self.wake()

    def _trim(self) -> None:
        needed = min((reader.at for reader in self.readers), default=self.end)
        needed = self.end if self.end - needed > _MOST_BEHIND else max(needed, self.first)
        del self.events[: needed - self.first]
        self.first = needed

    def wake(self) -> None:
        """Whoever waits, and nobody who comes later."""
        self.changed.set()
        self.changed = asyncio.Event()


class MemoryEventLog:
    """In this process, the oldest first; what does not fit is not kept, but whoever reads it gets it all.

    `on_evicted` hears of answers that had to go for others.
    """

    def __init__(
        self,
        limits: LogLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_evicted: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.clock = clock
        self.limits = limits or LogLimits()
        self._on_evicted = on_evicted
        self._kept: dict[str, KeptAnswer] = {}
        self._ended: dict[str, KeptAnswer] = {}  # in the order in which they did
        self._ended_of: dict[str, dict[str, KeptAnswer]] = {}  # the same, by tenant
        self._held: Counter[str] = Counter()  # bytes, by tenant
        self._held_in_all = 0

    def __contains__(self, name: str) -> bool:
        return name in self._kept

    def open(self, tenant: str, name: str, take: int = 1, claim: Claim | None = None) -> KeptAnswer:
        self._forget_expired()
        self.forget(name)
        kept = self._kept[name] = KeptAnswer(tenant, name, self, claim)
        self.make_room(kept, _ANSWER_BYTES)
        return kept

    async def claim(self, tenant: str, name: str, claim: Claim, after: int | None = None) -> Claimed:
        self._forget_expired()
        if (there := self.claim_of(name)) is not None:
            return Claimed(there)
        if after:
            raise NotKept
        return Claimed(claim, self.open(tenant, name, claim=claim))

    def claim_of(self, name: str) -> Claim | None:
        kept = self._kept.get(name)
        return None if kept is None else kept.claim

    async def follow(self, name: str, after: int) -> AsyncIterator[Sequence[bytes]]:
        kept = self._kept.get(name)
        if kept is None or after + 1 < kept.first:
            raise NotKept
        reader = _Reader(after + 1)
        kept.readers.append(reader)
        return _follow(kept, reader)

    def forget(self, name: str) -> None:
        kept = self._kept.get(name)
        if kept is not None:
            kept.is_forgotten = True
            self.release(kept)
            kept.drop()

    def release(self, kept: KeptAnswer) -> None:
        """Its name is free; whoever reads it may come to its end."""
        if self._kept.get(kept.name) is kept:
            kept.is_dropped = True
            del self._kept[kept.name]
            self._hold(kept, -kept.size_bytes)
            if self._ended.pop(kept.name, None) is not None:
                of_tenant = self._ended_of[kept.tenant]
                del of_tenant[kept.name]
                if not of_tenant:
                    del self._ended_of[kept.tenant]

    def ended(self, kept: KeptAnswer) -> None:
        if self._kept.get(kept.name) is kept:
            self._ended[kept.name] = kept
            self._ended_of.setdefault(kept.tenant, {})[kept.name] = kept

    def make_room(self, kept: KeptAnswer, more_bytes: int) -> None:
        """For so many more of one answer: others that have ended go for it, and without them this one."""
        limits, tenant = self.limits, kept.tenant
        while (
            is_own := self._held[tenant] + more_bytes > limits.bytes_per_tenant
        ) or self._held_in_all + more_bytes > limits.bytes_in_all:
            oldest = _first(self._ended_of.get(tenant, {}) if is_own else self._ended)
            if oldest is None:
                self._hold(kept, -kept.size_bytes)
                kept.drop()
                self._on_evicted(kept.name)
                return
            self.forget(oldest.name)
            self._on_evicted(oldest.name)
        self._hold(kept, more_bytes)

    def _forget_expired(self) -> None:
        expired_s = self.clock() - self.limits.kept_s
        while (oldest := _first(self._ended)) is not None and (oldest.ended_s or 0.0) < expired_s:
            self.forget(oldest.name)

    def _hold(self, kept: KeptAnswer, more_bytes: int) -> None:
        kept.size_bytes += more_bytes
        self._held_in_all += more_bytes
        self._held[kept.tenant] += more_bytes
        if not self._held[kept.tenant]:
            del self._held[kept.tenant]


def _first(queue: dict[str, KeptAnswer]) -> KeptAnswer | None:
    return next(iter(queue.values()), None)


async def _follow(kept: KeptAnswer, reader: _Reader) -> AsyncIterator[Sequence[bytes]]:
    try:
        while reader.at >= kept.first:
            if reader.at < kept.end:
                some = kept.events[reader.at - kept.first :]
                reader.at = kept.end
                yield some
            elif kept.is_taken:
                raise Moved
            elif kept.ended_s is not None:
                if kept.last:
                    yield [kept.last]
                return
            elif kept.is_forgotten:
                break
            else:
                await kept.changed.wait()
        raise NotKept
    finally:
        kept.readers.remove(reader)
