"""Kept answers in Redis: any router can show them, and end one whose router is gone.

What is told to a reader is in Redis before: nothing that a client has can be lost with a router. While Redis
is away answers go on in memory, as without it, and what was missed there is caught up on later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from router.control.peers.answer_stream import (
    CLOSED,
    END,
    GONE,
    LEFT,
    TOO_LATE,
    Story,
    StreamPoller,
    claim_entry,
    events_entry,
    id_of,
)
from router.control.peers.redis_link import RedisAway
from router.resume.event_log import Claimed, LogLimits, MemoryEventLog, Moved, NotKept

if TYPE_CHECKING:
    from router.control.peers.redis_link import RedisLink
    from router.resume.event_log import Claim, EventSink

log = logging.getLogger(__name__)

_RUNS_AT_MOST_MS = 3_600_000
_RENEWED_S = 300.0
_LOOKS_S = 1.0
_FOLLOWED_MS = 5000
_PAUSE_S = 0.5
_MOST_OWED_BYTES = 64 << 20
_ATTEMPTS = 5


class _Sink:
    """Everything goes to Redis first, then, in the same order, to the memory of this router.

    `is_ahead`: readers here have more than Redis has. `is_lost`: Redis no longer has it.
    """

    def __init__(self, log: SharedEventLog, name: str, local: Any, take: int) -> None:
        self.name = name
        self.key = log.key_of(name)
        self.local = local
        self.is_ahead = self.is_lost = False
        self.renewed_s = -inf
        self._log = log
        self._take = take
        self._number = 1

    @property
    def is_taken(self) -> bool:
        return bool(self.local.is_taken)

    @property
    def is_shared(self) -> bool:
        return not self.is_lost

    def add(self, events: Sequence[bytes], basis: bytes = b"") -> None:
        self._write(events_entry(events, basis), lambda: self.local.add(events))

    def close(self) -> None:
        self._write({END: CLOSED}, self.local.close)

    def leave(self, last: bytes, is_kept: bool) -> None:
        self._write({END: LEFT} if is_kept else None, lambda: self.local.leave(last, is_kept))

    async def is_followed(self) -> bool:
        return await self._log.is_followed(self.key)

    def taken(self) -> None:
        if self.is_ahead:  # what another router tells is not what readers here would need
            self._log.memory.forget(self.name)
        self.local.taken()

    def _write(self, fields: dict[bytes, bytes] | None, tell: Callable[[], None]) -> None:
        self._number += 1
        self._log.write(_Write(self, f"{self._take}-{self._number}", fields, tell))


class _Write:
    """One entry, or without fields the end of all; `tell` comes after it, once."""

    __slots__ = ("_tell", "entry_id", "fields", "sink")

    def __init__(
        self, sink: _Sink, entry_id: str, fields: dict[bytes, bytes] | None, tell: Callable[[], None]
    ) -> None:
        self.sink = sink
        self.entry_id = entry_id
        self.fields = fields
        self._tell: Callable[[], None] | None = tell

    @property
    def is_end(self) -> bool:
        return self.fields is None or END in self.fields

    @property
    def size_bytes(self) -> int:
        return 0 if self.fields is None else sum(map(len, self.fields.values()))

    def tell(self) -> None:
        if self._tell is not None:
            tell, self._tell = self._tell, None
            tell()


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
        self._sinks: dict[str, _Sink] = {}
        self._outbox: list[_Write] = []
        self._owed_bytes = 0
        self._flushing: asyncio.Task[None] | None = None
        self._is_away = False
        self._asked_again_s = 0.0  # until then nobody waits for a Redis that is away

    def key_of(self, name: str) -> str:
        return f"{self._link.prefix}answer:{name}"

    # Who makes an answer

    def open(self, tenant: str, name: str) -> EventSink:
        sink = _Sink(self, name, self.memory.open(tenant, name), 1)
        self.write(_Write(sink, "", None, lambda: None))
        self._sinks[name] = sink
        self.write(_Write(sink, "1-1", claim_entry(self._router, None), lambda: None))
        return sink

    async def claim(self, tenant: str, name: str, claim: Claim) -> Claimed:
        if self._clock() < self._asked_again_s:
            return await self.memory.claim(tenant, name, claim)
        lock = self._claiming.setdefault(name, asyncio.Lock())
        try:
            async with lock:
                if (there := self.memory.claim_of(name)) is not None:
                    return Claimed(there)
                return await self._claim(tenant, name, claim)
        except (RedisAway, self._link.refusal) as error:
            self._lost(error)
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
                log.info("the answer %s is continued, %d events of it are known", name[:8], len(story.events))
                sink = self._sink(tenant, name, claim=story.claim or claim, take=take)
                sink.local.add(story.events)
                return Claimed(story.claim or claim, sink, tuple(story.events), tuple(story.bases), take)
        raise RedisAway("others change the same answer at the same time")

    def _sink(self, tenant: str, name: str, claim: Claim, take: int) -> _Sink:
        sink = self._sinks[name] = _Sink(self, name, self.memory.open(tenant, name, claim), take)
        sink.renewed_s = self._clock()
        return sink

    async def _begin(self, key: str, take: int, claim: Claim | None) -> bool:
        """Whether this router has it now."""
        fields = claim_entry(self._router, claim)
        pipe = self._link.redis.pipeline(transaction=False)
        pipe.xadd(key, fields, id=f"{take}-1", nomkstream=claim is None)
        pipe.pexpire(key, _RUNS_AT_MOST_MS)
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
            self._lost(error)
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
                looked_s = self._clock()
                try:
                    is_made = await self._is_made(key, story.owner)
                except (RedisAway, self._link.refusal) as error:
                    failures += 1
                    if failures > _ATTEMPTS:
                        raise NotKept from error
                    continue
                failures = 0
                if not is_made:
                    raise Moved
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

    async def is_followed(self, key: str) -> bool:
        try:
            return bool(await self._link.ask(self._link.redis.exists(f"{key}:read")))
        except (RedisAway, self._link.refusal):
            return False

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
        last = _Sink(self, name, None, 0)
        self.write(_Write(last, "", None, lambda: None))
        if claim is not None:
            fields = {**claim_entry(self._router, claim), END: GONE}
            self.write(_Write(last, "1-1", fields, lambda: None))

    async def close(self) -> None:
        """When nothing more will come: what has is in Redis, if that is there."""
        if self._flushing is not None:
            await asyncio.wait([self._flushing], timeout=_LOOKS_S)

    # What is written, in order

    def write(self, write: _Write) -> None:
        if write.is_end and self._sinks.get(write.sink.name) is write.sink:
            del self._sinks[write.sink.name]
        if write.sink.is_lost:
            write.tell()
            return
        self._outbox.append(write)
        self._owed_bytes += write.size_bytes
        if self._is_away:
            write.sink.is_ahead = True
            write.tell()
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.get_running_loop().create_task(self._flush())

    async def _flush(self) -> None:
        while self._outbox:
            batch, self._outbox, self._owed_bytes = self._outbox, [], 0
            try:
                results = await self._link.ask(self._send(batch))
            except (RedisAway, self._link.refusal) as error:
                self._lost(error)
                await self._owe(batch)
                continue
            if self._is_away:
                log.info("answers are kept in Redis again")
                self._is_away = False
            for write, result in zip(batch, results, strict=True):
                await self._written(write, result)
            for write in () if self._outbox else batch:
                write.sink.is_ahead = False

    async def _owe(self, batch: list[_Write]) -> None:
        """Readers go on; Redis gets it when it is back, unless that is too much by then."""
        self._is_away = True
        for write in batch:
            write.sink.is_ahead = True
            write.tell()
        self._outbox = [*batch, *self._outbox]
        self._owed_bytes = sum(write.size_bytes for write in self._outbox)
        if self._owed_bytes > _MOST_OWED_BYTES:
            for write in self._outbox:
                write.sink.is_lost = True
            self._outbox, self._owed_bytes = [], 0
        await asyncio.sleep(_PAUSE_S)

    async def _send(self, batch: Sequence[_Write]) -> list[Any]:
        pipe, places = self._link.redis.pipeline(transaction=False), []
        for write in batch:
            places.append(len(pipe))
            key, now_s = write.sink.key, self._clock()
            if write.fields is None:
                pipe.delete(key)
                continue
            pipe.xadd(key, write.fields, id=write.entry_id, nomkstream=not write.entry_id.endswith("-1"))
            if write.is_end:
                pipe.pexpire(key, int(1000 * self.memory.limits.kept_s))
            elif now_s - write.sink.renewed_s > _RENEWED_S:
                write.sink.renewed_s = now_s
                pipe.pexpire(key, _RUNS_AT_MOST_MS)
        results = await pipe.execute(raise_on_error=False)
        return [results[place] for place in places]

    async def _written(self, write: _Write, result: Any) -> None:
        sink = write.sink
        if result is None:  # nothing is there any more
            sink.is_lost = True
        elif isinstance(result, Exception) and TOO_LATE in str(result):
            if not await self._is_there(write):
                sink.taken()
                sink.is_lost = True
                return
        elif isinstance(result, Exception):
            self._lost(result)
            sink.is_lost = True
        write.tell()

    async def _is_there(self, write: _Write) -> bool:
        """It was written, and only the answer was lost; otherwise another router has taken the answer."""
        try:
            found = await self._link.ask(self._link.redis.xrevrange(write.sink.key, count=1))
        except (RedisAway, self._link.refusal):
            return True
        return bool(found) and id_of(found[0][0])[0] == id_of(write.entry_id.encode())[0]

    def _lost(self, error: Exception) -> None:
        if not self._is_away:
            log.warning("answers are kept in this router alone, not in Redis: %s", error)
        self._is_away = True
        self._asked_again_s = self._clock() + _PAUSE_S
