"""Requests with an Idempotency-Key: done once however often they are sent, and read on by who comes back."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.fair_pool import unless_left
from router.core.origin import originating
from router.http import sse
from router.request.decoding import invalid
from router.request.errors import HttpError, write_error
from router.resume.event_log import Claim, LogAway, Moved, NotKept
from router.resume.kept_exchange import Head, KeptExchange, decode_head
from router.resume.retelling import Retelling

if TYPE_CHECKING:
    from router.core.record import Record
    from router.http.exchange import Exchange, Request
    from router.request.routes import Endpoint
    from router.resume.event_log import Claimed, EventLog, EventSink

HEADER = "idempotency-key"
_AFTER = ("last-event-id", "x-inflight-resume")
_MOST_KEY_CHARS = 255
_MOST_EVENT = 10**9
_MOST_LOOKS = 3
_KEEP_ALIVE_S = 10.0
_REPEATED = ("idempotent-replayed", "true")
_CUT = InflightError(ErrorKind.OVERLOADED, "the server is shutting down")


@dataclass(slots=True, eq=False)
class _Run:
    """An answer that is made here."""

    exchange: KeptExchange
    sink: EventSink
    readers: int = 0
    unread_s: float | None = None  # since when nobody reads it


class KeyedRequests:
    """Each answer is made by the request that came first, and goes on without it for `grace_s` at most."""

    def __init__(
        self, log: EventLog, grace_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._grace_s = grace_s
        self._clock = clock
        self._runs: dict[str, _Run] = {}
        self._watching: asyncio.Task[None] | None = None

    async def answer(self, exchange: Exchange, record: Record, endpoint: Endpoint) -> None:
        request = exchange.request
        name, reader = _name_of(record, request.headers[HEADER]), _Reader(exchange, _after(request))
        own = Claim(_fingerprint(request), record.request_id, secrets.randbits(63), time.time())
        for attempt in itertools.count(1):
            try:
                claimed = await self._log.claim(record.tenant, name, own, reader.after)
            except NotKept:
                raise _not_kept() from None
            if claimed.claim.fingerprint != own.fingerprint:
                message = "this Idempotency-Key was used with another request: use a new key for a new one"
                raise InflightError(ErrorKind.CONFLICT, message, code="idempotency_key_reused")
            if claimed.sink is not None:
                await self._make(name, exchange, record, endpoint, claimed, claimed.sink, reader)
                return
            reader.is_repeat = True
            try:
                await unless_left(self._read(name, reader), exchange.on_disconnect)
                return
            except (Moved, LogAway):
                continue
            except NotKept:  # it may just have failed, and be begun again
                if reader.has_begun or attempt > _MOST_LOOKS:
                    raise _not_kept() from None

    async def _make(
        self,
        name: str,
        exchange: Exchange,
        record: Record,
        endpoint: Endpoint,
        claimed: Claimed,
        sink: EventSink,
        reader: _Reader,
    ) -> None:
        retelling = Retelling(claimed, sink) if sink.is_shared else None
        kept = KeptExchange(exchange, record, sink, claimed.told, retelling)
        claim = claimed.claim
        record.request_id, record.began_s, record.journal = claim.request_id, claim.began_s, retelling
        if claimed.told:
            record.pinned_release, record.is_release_given = decode_head(claimed.told[0]).release, True
        with self._running(name, _Run(kept, sink)):
            reading = asyncio.get_running_loop().create_task(self._deliver(name, exchange, reader))
            try:
                with originating(claim.seed, claimed.take):
                    await endpoint(kept, record)
                sink.close()
            except BaseException as error:
                _end_badly(kept, record, sink, retelling, error)
                raise
            finally:
                await asyncio.wait([reading])

    async def _deliver(self, name: str, exchange: Exchange, reader: _Reader) -> None:
        """To the one whose request it is; the answer goes on without them."""
        with suppress(InflightError):
            await unless_left(self._read(name, reader), exchange.on_disconnect)

    async def _read(self, name: str, reader: _Reader) -> None:
        run = self._runs.get(name)
        if run is None:
            await reader.read(await self._log.follow(name, reader.follows_after))
            return
        run.readers += 1
        run.unread_s = None
        try:
            await reader.read(await self._log.follow(name, reader.follows_after))
        finally:
            run.readers -= 1
            run.unread_s = None if run.readers else self._clock()

    @contextmanager
    def _running(self, name: str, run: _Run) -> Iterator[None]:
        self._runs[name] = run
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())
        try:
            yield
        finally:
            if self._runs.get(name) is run:
                del self._runs[name]
            if not self._runs and self._watching is not None:
                self._watching.cancel()
                self._watching = None

    async def _watch(self) -> None:
        """Nothing is made for nobody."""
        while True:
            await asyncio.sleep(min(1.0, self._grace_s / 4))
            for run in list(self._runs.values()):
                if run.sink.is_taken:
                    run.exchange.client_left()
                elif run.unread_s is not None and self._clock() - run.unread_s >= self._grace_s:
                    run.unread_s = self._clock()
                    if not await run.sink.is_followed():
                        run.exchange.client_left()


class _Reader:
    """One client, and how much it has: events up to the number `at`."""

    def __init__(self, exchange: Exchange, at: int) -> None:
        self.at = at
        self.is_repeat = False
        self._exchange = exchange
        self._head: Head | None = None

    @property
    def has_begun(self) -> bool:
        return self._head is not None

    @property
    def after(self) -> int | None:
        """The last event that it has of an answer that was certainly begun."""
        return self.at if self.at or self.is_repeat else None

    @property
    def follows_after(self) -> int:
        return -1 if self._head is None else self.at

    async def read(self, events: AsyncIterator[Sequence[bytes]]) -> None:
        """To the end of the answer, for as long as the client is there."""
        alive = None
        number = self.follows_after
        try:
            async for some in events:
                number += len(some)
                if self._head is None:
                    self._head, some = decode_head(some[0]), some[1:]
                    if not self._head.is_whole:
                        self._exchange.start(self._head.status, self._headers(self._head))
                        alive = asyncio.get_running_loop().create_task(self._keep_alive(self._head))
                if self._head.is_whole:
                    if some:
                        self._exchange.respond(self._head.status, some[0], self._headers(self._head))
                        return
                elif news := some[max(0, len(some) - max(0, number - self.at)) :]:
                    self.at = number
                    await self._exchange.send(b"".join(news))
            self._exchange.end()
        finally:
            if alive is not None:
                alive.cancel()

    def _headers(self, head: Head) -> list[tuple[str, str]]:
        return [*head.headers, _REPEATED] if self.is_repeat else head.headers

    async def _keep_alive(self, head: Head) -> None:
        """Where nothing came for a while: proxies close a connection that is silent."""
        while True:
            at = self.at
            await asyncio.sleep(_KEEP_ALIVE_S)
            if at == self.at:
                self._exchange.fill_silence(sse.COMMENT if head.is_sse else b" ")


def _end_badly(
    kept: KeptExchange, record: Record, sink: EventSink, retelling: Retelling | None, error: BaseException
) -> None:
    """What failed by our fault may be tried again with the same key, what failed by the caller's stays."""
    told = error if isinstance(error, Exception) else _CUT
    if not kept.ended:
        write_error(kept, record, told)
    is_callers = isinstance(error, InflightError) and error.kind.is_callers_fault
    if kept.failure is not None and is_callers and record.dispatched_s is not None:
        kept.keep_failure()
        sink.close()
        return
    is_refused = record.dispatched_s is None  # for now: no engine has failed on it
    goes_on = retelling is not None and (
        is_callers or retelling.goes_on_elsewhere(told) or (is_refused and retelling.has_begun)
    )
    sink.leave(kept.failure or b"", is_kept=goes_on and kept.failure is not None)


def _not_kept() -> HttpError:
    message = (
        "the answer of this Idempotency-Key is not (completely) stored: use a new key, without Last-Event-ID"
    )
    return HttpError(410, message)


def _name_of(record: Record, key: str) -> str:
    """Known to its owner alone; what is kept under it never shows it."""
    if not (0 < len(key) <= _MOST_KEY_CHARS and key.isprintable()):
        raise invalid(f"Idempotency-Key: expected 1 to {_MOST_KEY_CHARS} printable characters")
    caller = record.caller
    return _digest(caller.organisation.id, caller.user.id, key)


def _fingerprint(request: Request) -> str:
    return hashlib.sha256(
        b"\0".join([request.path.encode(), request.query.encode(), request.body])
    ).hexdigest()


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def _after(request: Request) -> int:
    """The number of the last event that the client has; 0 for none."""
    for header in _AFTER:
        if (given := request.headers.get(header)) is not None:
            if not (given.isascii() and given.isdigit() and int(given) <= _MOST_EVENT):
                raise invalid(f"{header}: expected an event id, a number")
            return int(given)
    return 0
