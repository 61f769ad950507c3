"""Kept answers in Redis: any router can show them, and end one whose router is gone.

What is told to a reader is in Redis before: nothing that a client has can be lost with a router. While Redis
is away answers go on in memory, as without it, and what was missed there is caught up on later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from router.control.peers.answer_outbox import RUNS_AT_MOST_MS, AnswerSink, Outbox, Write
from router.control.peers.answer_stream import (
    CLOSED,
    END,
    GONE,
    LEFT,
    TOO_LATE,
    Story,
    StreamPoller,
    claim_entry,
)
from router.control.peers.redis_link import RedisAway
from router.resume.event_log import Claimed, Moved, NotKept
from router.resume.memory_log import LogLimits, MemoryEventLog

if TYPE_CHECKING:
    from router.control.peers.redis_link import RedisLink
    from router.resume.event_log import Claim, EventSink

log = logging.getLogger(__name__)

_LOOKS_S = 1.0
_FOLLOWED_MS = 5000
_ATTEMPTS = 5


class SharedEventLog:
    """`router` is this one's name, under which it is heard of as long as it lives."""

    def __init__(
        self,
        link: RedisLink,
        router: str,
        limits: LogLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.memory = MemoryEventLog(limits, clock, self._evicted)
        self._link = link
        self._router = router
        self._clock = clock
        self._poller = StreamPoller(link)
        self._claiming: dict[str, asyncio.Lock] = {}
        self._sinks: WeakValueDictionary[str, AnswerSink] = WeakValueDictionary()  # of what is being made
        self._outbox = Outbox(link, self.memory.limits.kept_s, clock)

    def key_of(self, name: str) -> str:
        return f"{self._link.prefix}answer:{name}"

    # Who makes an answer

    def open(self, tenant: str, name: str) -> EventSink:
        sink = self._sink(tenant, name, None, 1)
        self._outbox.write(Write(sink.key))
        self._outbox.write(Write(sink.key, sink, "1-1", claim_entry(self._router, None)))
        return sink

    async def claim(self, tenant: str, name: str, claim: Claim) -> Claimed:
        if self._clock() < self._outbox.asked_again_s:
            return await self.memory.claim(tenant, name, claim)
        lock = self._claiming.setdefault(name, asyncio.Lock())
        try:
            async with lock:
                if (there := self.memory.claim_of(name)) is not None:
                    return Claimed(there)
                return await self._claim(tenant, name, claim)
        except (RedisAway, self._link.refusal) as error:
            self._outbox.lost(error)
            return await self.memory.claim(tenant, name, claim)
        finally:
            if not lock.locked():
                self._claiming.pop(name, None)

    async def _claim(self, tenant: str, name: str, claim: Claim) -> Claimed:
        key = self.key_of(name)
        for _ in range(_ATTEMPTS):
            if await self._begin(key, 1, claim):
                return Claimed(claim, self._sink(tenant, name, claim, 1))
            story = await self._read(key)
            if story is None or story.claim is None:
                continue  # it has just expired
            if story.claim.fingerprint != claim.fingerprint or story.end in (CLOSED, GONE):
                return Claimed(story.claim)
            if story.end != LEFT and await self._is_alive(story.owner):
                return Claimed(story.claim)
            take = story.take + 1
            if await self._begin(key, take, None):
                story = await self._read(key) or story  # with the last words of the router before
                log.info("the answer %s is resumed; %d of its events are stored", name[:8], len(story.events))
                sink = self._sink(tenant, name, claim=story.claim or claim, take=take)
                sink.local.add(story.events)
                return Claimed(story.claim or claim, sink, tuple(story.events), tuple(story.bases), take)
        raise RedisAway("other routers are changing the same answer at the same time")

    def _sink(self, tenant: str, name: str, claim: Claim | None, take: int) -> AnswerSink:
        local = self.memory.open(tenant, name, claim)
        sink = self._sinks[name] = AnswerSink(self._outbox, self.key_of(name), local, take)
        return sink

    async def _begin(self, key: str, take: int, claim: Claim | None) -> bool:
        """Whether this router has it now."""
        fields = claim_entry(self._router, claim)
        pipe = self._link.redis.pipeline(transaction=False)
        pipe.xadd(key, fields, id=f"{take}-1", nomkstream=claim is None)
        pipe.pexpire(key, RUNS_AT_MOST_MS)
        added, _ = await self._link.ask(pipe.execute(raise_on_error=False))
        if isinstance(added, Exception) and TOO_LATE not in str(added):
            raise RedisAway(str(added))
        return isinstance(added, bytes)

    async def _is_alive(self, owner: str) -> bool:
        """Every router renews its own key; see `board`."""
        if owner == self._router:
            return False  # what is made here is in memory
        return bool(await self._link.ask(self._link.redis.exists(self._link.prefix + owner)))

    async def _read(self, key: str) -> Story | None:
        entries = await self._link.ask(self._link.redis.xrange(key))
        if not entries:
            return None
        story = Story()
        story.hear(entries)
        return story

    # Readers

    async def follow(self, name: str, after: int) -> AsyncIterator[Sequence[bytes]]:
        if name in self.memory:
            return await self.memory.follow(name, after)
        try:
            story = await self._read(self.key_of(name))
        except (RedisAway, self._link.refusal) as error:
            self._outbox.lost(error)
            raise NotKept from None
        if story is None or story.end == GONE:
            raise NotKept
        return self._follow(self.key_of(name), story, after + 1)

    async def _follow(self, key: str, story: Story, at: int) -> AsyncIterator[Sequence[bytes]]:
        looked_s, failures = 0.0, 0
        while True:
            if at < len(story.events):
                some, at = story.events[at:], len(story.events)
                yield some
            elif story.end == CLOSED:
                return
            elif story.end == GONE:
                raise NotKept
            elif story.end == LEFT:
                raise Moved
            elif self._clock() - looked_s > _LOOKS_S:
                try:
                    if not await self._is_made(key, story.owner):
                        raise Moved
                    failures = 0
                except (RedisAway, self._link.refusal) as error:
                    failures += 1
                    if failures > _ATTEMPTS:
                        raise NotKept from error
                looked_s = self._clock()
            else:
                story.hear(await self._poller.more(key, story.last_id, _LOOKS_S))

    async def _is_made(self, key: str, owner: str) -> bool:
        """Whether more may come; whoever makes it knows for a while that it is read here."""
        pipe = self._link.redis.pipeline(transaction=False)
        pipe.exists(self._link.prefix + owner)
        pipe.exists(key)
        pipe.set(f"{key}:read", b"1", px=_FOLLOWED_MS)
        is_alive, is_there, _ = await self._link.ask(pipe.execute())
        return bool(is_alive and is_there)

    def forget(self, name: str) -> None:
        self.memory.forget(name)
        self._delete(name, None)

    def _evicted(self, name: str) -> None:
        """For lack of room; of one that is still made others must know that it was begun."""
        self._delete(name, self.memory.claim_of(name))

    def _delete(self, name: str, claim: Claim | None) -> None:
        sink = self._sinks.pop(name, None)
        if sink is not None:
            sink.is_lost = True
        key = self.key_of(name)
        self._outbox.write(Write(key))
        if claim is not None:
            self._outbox.write(Write(key, None, "1-1", {**claim_entry(self._router, claim), END: GONE}))

    async def close(self) -> None:
        await self._outbox.close()
