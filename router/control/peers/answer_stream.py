"""One answer in Redis: a stream of entries, each appended by the router that makes the answer.

The id of an entry is TAKE-NUMBER. Redis appends only what is behind the last entry, so whoever appends the
first entry of a take has the answer, one router alone can, and nothing that the router before it still
appends arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from router.control.peers.redis_link import RedisAway, RedisLink
from router.resume.event_log import Claim

CLAIM, OWNER, EVENTS, BASIS, END = b"c", b"o", b"e", b"b", b"z"
CLOSED, LEFT, GONE = b"closed", b"left", b"gone"
Entry = tuple[bytes, Mapping[bytes, bytes]]
TOO_LATE = "equal or smaller"  # as Redis calls an entry that belongs before the last one
_BLOCK_MS = 100
_MOST_ENTRIES = 1000
_encode = msgspec.msgpack.Encoder().encode
_events = msgspec.msgpack.Decoder(list[bytes])
_claim = msgspec.msgpack.Decoder(Claim)


def claim_entry(router: str, claim: Claim | None) -> dict[bytes, bytes]:
    owned = {OWNER: router.encode()}
    return owned if claim is None else {CLAIM: _encode(claim), **owned}


def events_entry(events: Sequence[bytes], basis: bytes) -> dict[bytes, bytes]:
    entry = {EVENTS: _encode(events)}
    return {**entry, BASIS: basis} if basis else entry


class Story:
    """All that its entries tell."""

    def __init__(self) -> None:
        self.claim: Claim | None = None
        self.owner = ""
        self.take = 0
        self.events: list[bytes] = []
        self.bases: list[bytes] = []
        self.end = b""
        self.last_id = b"0-0"

    def hear(self, entries: Sequence[Entry]) -> None:
        for entry_id, fields in entries:
            if id_of(entry_id) <= id_of(self.last_id):
                continue
            self.last_id = entry_id
            if CLAIM in fields:
                self.claim = _claim.decode(fields[CLAIM])
            if OWNER in fields:
                self.owner, self.take, self.end = fields[OWNER].decode(), id_of(entry_id)[0], b""
            if EVENTS in fields:
                self.events += _events.decode(fields[EVENTS])
            if BASIS in fields:
                self.bases.append(fields[BASIS])
            self.end = fields.get(END, self.end)


def id_of(entry_id: bytes) -> tuple[int, int]:
    take, _, number = entry_id.partition(b"-")
    return int(take), int(number)


class StreamPoller:
    """Reads on in all streams that somebody waits for, in one question at a time."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._waiting: dict[str, list[tuple[bytes, asyncio.Future[Sequence[Entry]]]]] = {}
        self._polling: asyncio.Task[None] | None = None

    async def more(self, key: str, after: bytes, limit_s: float) -> Sequence[Entry]:
        """The entries behind an id as soon as there are some; none where there are none in time."""
        waiter: asyncio.Future[Sequence[Entry]] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append((after, waiter))
        if self._polling is None or self._polling.done():
            self._polling = asyncio.get_running_loop().create_task(self._poll())
        try:
            await asyncio.wait([waiter], timeout=limit_s)
            return waiter.result() if waiter.done() else []
        finally:
            self._forget(key, waiter)

    def _forget(self, key: str, waiter: asyncio.Future[Sequence[Entry]]) -> None:
        left = [each for each in self._waiting.get(key, ()) if each[1] is not waiter]
        if left:
            self._waiting[key] = left
        else:
            self._waiting.pop(key, None)

    async def _poll(self) -> None:
        while self._waiting:
            wanted = {key: min((each[0] for each in some), key=id_of) for key, some in self._waiting.items()}
            try:
                asked = self._link.redis.xread(wanted, count=_MOST_ENTRIES, block=_BLOCK_MS)
                found: Any = await self._link.ask(asked)
            except (RedisAway, self._link.refusal):
                await asyncio.sleep(_BLOCK_MS / 1000)
                continue
            for name, entries in found:
                for _, waiter in self._waiting.pop(name.decode(), ()):
                    if not waiter.done():
                        waiter.set_result(entries)
