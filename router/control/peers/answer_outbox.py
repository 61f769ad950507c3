"""What a router writes to the streams of answers: in order, together, and caught up on after an outage."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any

from router.control.peers.answer_stream import CLOSED, END, GONE, LEFT, TOO_LATE, events_entry, id_of
from router.control.peers.redis_link import RedisAway

if TYPE_CHECKING:
    from router.control.peers.redis_link import RedisLink
    from router.resume.memory_log import KeptAnswer

log = logging.getLogger(__name__)

RUNS_AT_MOST_MS = 3_600_000
_RENEWED_S = 300.0
_PAUSE_S = 0.5
_MOST_OWED_BYTES = 64 << 20


class AnswerSink:
    """Everything goes to Redis first, then, in the same order, to the memory of this router.

    `is_ahead`: readers here have more than Redis has. `is_lost`: Redis no longer has it.
    """

    def __init__(self, outbox: Outbox, key: str, local: KeptAnswer, take: int) -> None:
        self.key = key
        self.local = local
        self.is_ahead = self.is_lost = False
        self.renewed_s = -inf
        self._outbox = outbox
        self.take = take
        self._number = 1

    @property
    def is_taken(self) -> bool:
        return self.local.is_taken

    @property
    def is_shared(self) -> bool:
        return not self.is_lost

    def add(self, events: Sequence[bytes], basis: bytes = b"") -> None:
        self._write(events_entry(events, basis), lambda: self.local.add(events))

    def close(self) -> None:
        self._write({END: CLOSED}, self.local.close)

    def leave(self, last: bytes, is_kept: bool) -> None:
        self._write({END: LEFT if is_kept else GONE}, lambda: self.local.leave(last, is_kept))

    async def is_followed(self) -> bool:
        return await self._outbox.is_followed(self.key)

    def taken(self) -> None:
        if self.is_ahead:  # what another router tells is not what readers here would need
            self.local.log.forget(self.local.name)
        self.local.taken()

    def _write(self, fields: dict[bytes, bytes], tell: Callable[[], None]) -> None:
        self._number += 1
        self._outbox.write(Write(self.key, self, f"{self.take}-{self._number}", fields, tell))


class Write:
    """One entry, or without fields the deletion of all; `tell` comes after it, once.

    Nobody is told what comes of an answer that another router has taken. One that `is_claim` begins an answer
    that is being made already; there may be another one of the name.
    """

    __slots__ = ("_tell", "entry_id", "fields", "is_claim", "key", "sink")

    def __init__(
        self,
        key: str,
        sink: AnswerSink | None = None,
        entry_id: str = "",
        fields: dict[bytes, bytes] | None = None,
        tell: Callable[[], None] | None = None,
        is_claim: bool = False,
    ) -> None:
        self.key = key
        self.sink = sink  # of whoever makes the answer
        self.entry_id = entry_id
        self.fields = fields
        self.is_claim = is_claim
        self._tell = tell

    @property
    def is_lost(self) -> bool:
        return self.sink is not None and self.sink.is_lost

    @property
    def is_end(self) -> bool:
        return self.fields is not None and END in self.fields

    @property
    def is_drop(self) -> bool:
        """Its router has no more to do with the answer, and nobody else has: the name is free."""
        return self.sink is not None and self.fields == {END: GONE}

    @property
    def size_bytes(self) -> int:
        return 0 if self.fields is None else sum(map(len, self.fields.values()))

    def tell_ahead(self) -> None:
        """Before Redis has it."""
        if self.sink is not None and not self.is_told:
            self.sink.is_ahead = True
        self.tell()

    @property
    def is_told(self) -> bool:
        return self._tell is None

    def tell(self) -> None:
        if self._tell is not None:
            tell, self._tell = self._tell, None
            if self.sink is None or not self.sink.is_taken:
                tell()


class Outbox:
    """Readers are told in the order of writing, whatever becomes of Redis meanwhile: as soon as it is known
    to be away all that waits for it, then at once.

    `asked_again_s`: until then nobody waits for a Redis that is away.
    """

    def __init__(self, link: RedisLink, kept_s: float, clock: Callable[[], float]) -> None:
        self.is_away = False
        self.asked_again_s = 0.0
        self._link = link
        self._kept_s = kept_s
        self._clock = clock
        self._waiting: list[Write] = []
        self._untold: deque[Write] = deque()  # under way to Redis, or waiting
        self._flushing: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """When nothing more will come: what has is in Redis, if that is there."""
        if self._flushing is not None:
            await asyncio.wait([self._flushing], timeout=2 * _PAUSE_S)
            self._flushing.cancel()  # it would connect again to a Redis that nobody closes then

    async def is_followed(self, key: str) -> bool:
        try:
            return bool(await self._link.ask(self._link.redis.exists(f"{key}:read")))
        except (RedisAway, self._link.refusal):
            return False

    def write(self, write: Write) -> None:
        if write.is_lost:
            for earlier in list(self._untold):
                if earlier.sink is write.sink:
                    earlier.tell()
            write.tell()
            return
        self._waiting.append(write)
        if not write.is_told:
            self._untold.append(write)
            if self.is_away:
                self._tell_all_ahead()
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.get_running_loop().create_task(self._flush())

    async def _flush(self) -> None:
        while self._waiting:
            batch = self._next_batch()
            try:
                results = await self._link.ask(self._send(batch))
            except (RedisAway, self._link.refusal) as error:
                self.lost(error)
                await self._owe(batch)
                continue
            if self.is_away:
                log.info("answers are stored in Redis again")
                self.is_away = False
            self.heard()
            ended = []
            for write, result in zip(batch, results, strict=True):
                if await self._written(write, result) and write.is_end:
                    ended.append(write)
            await self._let_go(ended)
            behind = {write.key for write in self._waiting}
            for write in batch:
                if write.sink is not None and write.key not in behind:
                    write.sink.is_ahead = False

    def _next_batch(self) -> list[Write]:
        """All up to the next claim: what comes after one that fails would be added to another's answer."""
        ends = (number for number, write in enumerate(self._waiting, 1) if write.is_claim)
        end = next(ends, len(self._waiting))
        batch, self._waiting = self._waiting[:end], self._waiting[end:]
        return batch

    async def _let_go(self, ended: Sequence[Write]) -> None:
        """Only once their ends are there: until then another router may have taken them."""
        self._waiting += [Write(write.key) for write in ended if write.is_drop]
        pipe = self._link.redis.pipeline(transaction=False)
        for write in ended:
            if not write.is_drop:
                pipe.pexpire(write.key, int(1000 * self._kept_s))
        if len(pipe):
            with suppress(RedisAway, self._link.refusal):  # then they stay for as long as they might have run
                await self._link.ask(pipe.execute(raise_on_error=False))

    async def _owe(self, batch: list[Write]) -> None:
        """Readers go on; Redis gets it when it is back, unless that is too much by then."""
        self._waiting = [*batch, *self._waiting]
        for write in batch:
            if write.sink is not None:
                write.sink.renewed_s = -inf
        if sum(write.size_bytes for write in self._waiting) > _MOST_OWED_BYTES:
            for write in self._waiting:
                if write.sink is not None:
                    write.sink.is_lost = True
            # Who reads one of these by another router need not wait for the rest.
            last = {write.key: write for write in self._waiting if write.sink is not None}
            self._waiting = [Write(key, None, write.entry_id, {END: GONE}) for key, write in last.items()]
        await asyncio.sleep(_PAUSE_S)

    async def _send(self, batch: Sequence[Write]) -> list[Any]:
        pipe, places = self._link.redis.pipeline(transaction=False), []
        for write in batch:
            places.append(len(pipe))
            key, sink, now_s = write.key, write.sink, self._clock()
            if write.fields is None:
                pipe.delete(key)
                continue
            if write.is_lost:
                pipe.exists(key)
                continue
            pipe.xadd(key, write.fields, id=write.entry_id, nomkstream=not write.entry_id.endswith("-1"))
            if sink is not None and not write.is_claim and now_s - sink.renewed_s > _RENEWED_S:
                sink.renewed_s = now_s
                pipe.pexpire(key, RUNS_AT_MOST_MS)
        results = await pipe.execute(raise_on_error=False)
        return [results[place] for place in places]

    async def _written(self, write: Write, result: Any) -> bool:
        """Whether it is in Redis now."""
        is_there = isinstance(result, bytes)
        if (sink := write.sink) is None:
            return is_there
        if isinstance(result, Exception) and TOO_LATE in str(result):
            is_there = await (self._is_own(write) if write.is_claim else self._is_there(write))
            if not is_there and not write.is_claim and not sink.is_taken:
                sink.taken()
        elif isinstance(result, Exception):
            self.lost(result)
        sink.is_lost = sink.is_lost or not is_there
        write.tell()
        while self._untold and self._untold[0].is_told:
            self._untold.popleft()
        return is_there

    async def _is_there(self, write: Write) -> bool:
        """It was written, and only the answer was lost; otherwise another router has taken the answer."""
        try:
            found = await self._link.ask(self._link.redis.xrevrange(write.key, count=1))
        except (RedisAway, self._link.refusal):
            return True
        return bool(found) and id_of(found[0][0])[0] == id_of(write.entry_id.encode())[0]

    async def _is_own(self, claim: Write) -> bool:
        """Otherwise another router was asked for the same meanwhile: its answer is the one that is kept."""
        there = claim.entry_id
        while True:
            try:
                found = await self._link.ask(self._link.redis.xrange(claim.key, there, there))
                return bool(found) and found[0][1] == claim.fields
            except (RedisAway, self._link.refusal) as error:
                self.lost(error)
                await asyncio.sleep(_PAUSE_S)

    def _tell_all_ahead(self) -> None:
        while self._untold:
            self._untold.popleft().tell_ahead()

    def heard(self) -> None:
        """Redis answers."""
        self.asked_again_s = 0.0

    def lost(self, error: Exception) -> None:
        if not self.is_away:
            log.warning("answers are stored only in this router, not in Redis: %s", error)
        self.is_away = True
        self._tell_all_ahead()
        self.asked_again_s = self._clock() + _PAUSE_S
