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
from router.resume.event_log import Claimed, LogAway, Moved, NotKept
from router.resume.memory_log import LogLimits, MemoryEventLog

if TYPE_CHECKING:
    from router.control.peers.redis_link import RedisLink
    from router.resume.event_log import Claim, EventSink

log = logging.getLogger(__name__)

_LOOKS_S = 1.0
_FOLLOWED_MS = 5000
_ATTEMPTS = 5
_PAUSE_S = 0.25
# For so long who comes back waits for Redis, or for a router that has to catch up with it.
PATIENCE_S = 5.0


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
        self._claiming: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._leaving: set[asyncio.Task[None]] = set()
        self._sinks: WeakValueDictionary[str, AnswerSink] = WeakValueDictionary()  # of what is being made
        self._outbox = Outbox(link, self.memory.limits.kept_s, clock)

    def key_of(self, name: str) -> str:
        return f"{self._link.prefix}answer:{name}"

    # Who makes an answer

    def open(self, tenant: str, name: str, take: int = 1) -> EventSink:
        sink = self._sink(tenant, name, None, take)
        self._outbox.write(Write(sink.key))
        self._outbox.write(Write(sink.key, sink, f"{take}-1", claim_entry(self._router, None)))
        return sink

    async def claim(self, tenant: str, name: str, claim: Claim, after: int | None = None) -> Claimed:
        """Waits for PATIENCE_S at most, and only for an answer that was begun before.

        Who has events of an answer that is not in Redis may be ahead of it: the router that makes the answer
        may have missed Redis, and not have caught up yet.
        """
        until_s = self._clock() + PATIENCE_S
        while True:
            why: Exception
            try:
                async with self._lock_of(name):
                    if (there := self.memory.claim_of(name)) is not None:
                        return Claimed(there)
                    if after is None and self._clock() < self._outbox.asked_again_s:
                        return self._claim_here(tenant, name, claim)
                    try:
                        claimed = await self._claim(tenant, name, claim, after)
                        self._outbox.heard()
                        return claimed
                    except (RedisAway, self._link.refusal) as error:
                        self._outbox.lost(error)
                        if after is None:
                            return self._claim_here(tenant, name, claim)
                        why = LogAway()
            except NotKept as error:
                why = error
            if self._clock() >= until_s:
                raise why
            await asyncio.sleep(_PAUSE_S)

    def _lock_of(self, name: str) -> asyncio.Lock:
        """One for all who claim the same here at the same time."""
        lock = self._claiming.get(name)
        if lock is None:
            lock = self._claiming[name] = asyncio.Lock()
        return lock

    def _claim_here(self, tenant: str, name: str, claim: Claim) -> Claimed:
        """Redis hears of it when it is back."""
        sink = self._sink(tenant, name, claim, 1)
        self._outbox.write(Write(sink.key, sink, "1-1", claim_entry(self._router, claim), is_claim=True))
        return Claimed(claim, sink)

    async def _claim(self, tenant: str, name: str, claim: Claim, after: int | None) -> Claimed:
        key = self.key_of(name)
        for _ in range(_ATTEMPTS):
            story = await self._read(key)
            if story is None or story.claim is None:
                if after:
                    raise NotKept
                if await self._begin(name, 1, claim):
                    return Claimed(claim, self._sink(tenant, name, claim, 1))
                continue  # another router was faster
            if story.claim.fingerprint != claim.fingerprint or story.end in (CLOSED, GONE):
                return Claimed(story.claim)
            if story.end != LEFT and await self._is_alive(story.owner):
                return Claimed(story.claim)
            if after and len(story.events) <= after:
                raise NotKept  # nobody can tell how the missing ones were cut
            if (claimed := await self._take_over(tenant, name, story.take + 1)) is not None:
                return claimed
        raise RedisAway("other routers are changing the same answer at the same time")

    async def _take_over(self, tenant: str, name: str, take: int) -> Claimed | None:
        """None where another router was faster."""
        if not await self._begin(name, take, None):
            return None
        try:
            story = await self._read(self.key_of(name))  # with the last words of the router before
        except BaseException:
            self._give_back(name, take)
            raise
        if story is None or story.claim is None:
            return None
        log.info("the answer %s is resumed; %d of its events are stored", name[:8], len(story.events))
        sink = self._sink(tenant, name, story.claim, take)
        sink.local.add(story.events)
        return Claimed(story.claim, sink, tuple(story.events), tuple(story.bases), take)

    def _sink(self, tenant: str, name: str, claim: Claim | None, take: int) -> AnswerSink:
        local = self.memory.open(tenant, name, claim=claim)
        sink = self._sinks[name] = AnswerSink(self._outbox, self.key_of(name), local, take)
        return sink

    async def _begin(self, name: str, take: int, claim: Claim | None) -> bool:
        """Whether this router has it now."""
        key, fields = self.key_of(name), claim_entry(self._router, claim)
        pipe = self._link.redis.pipeline(transaction=False)
        pipe.xadd(key, fields, id=f"{take}-1", nomkstream=claim is None)
        pipe.pexpire(key, RUNS_AT_MOST_MS)
        try:
            added, _ = await self._link.ask(pipe.execute(raise_on_error=False))
        except BaseException:
            self._give_back(name, take)
            raise
        if isinstance(added, Exception) and TOO_LATE not in str(added):
            raise RedisAway(str(added))
        return isinstance(added, bytes)

    def _give_back(self, name: str, take: int) -> None:
        """This router may have begun a take in Redis, and makes nothing: others would wait for it."""
        leaving = asyncio.get_running_loop().create_task(self._leave(name, take))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    async def _leave(self, name: str, take: int) -> None:
        key = self.key_of(name)
        while True:
            try:
                story = await self._read(key)
                break
            except (RedisAway, self._link.refusal):
                await asyncio.sleep(_PAUSE_S)
        is_last = story is not None and (story.owner, story.take) == (self._router, take)
        made = self._sinks.get(name)
        if is_last and (made is None or made.take != take):
            self._outbox.write(Write(key, None, f"{take}-2", {END: LEFT}))

    async def _is_alive(self, owner: str) -> bool:
        """Every router renews its own key; see `board`. After an outage it needs a moment for that."""
        if owner == self._router:
            return False  # what is made here is in memory
        if await self._link.ask(self._link.redis.exists(self._link.prefix + owner)):
            return True
        return self._link.has_just_failed

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
            raise LogAway from None
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
                    await self._look(key, story.owner)
                    failures = 0
                except (RedisAway, self._link.refusal) as error:
                    failures += 1
                    if failures > _ATTEMPTS:
                        raise LogAway from error
                looked_s = self._clock()
            else:
                story.hear(await self._poller.more(key, story.last_id, _LOOKS_S))

    async def _look(self, key: str, owner: str) -> None:
        """Raises where no more will come; whoever makes it knows for a while that it is read here."""
        pipe = self._link.redis.pipeline(transaction=False)
        pipe.exists(self._link.prefix + owner)
        pipe.exists(key)
        pipe.set(f"{key}:read", b"1", px=_FOLLOWED_MS)
        is_alive, is_there, _ = await self._link.ask(pipe.execute())
        if not is_there:
            raise NotKept
        if not is_alive and not self._link.has_just_failed:
            raise Moved

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
        for leaving in self._leaving:
            leaving.cancel()
        await self._outbox.close()
