"""Responses that are made without a reader: those under way here, and how their events are followed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.fair_pool import unless_left
from router.http import sse
from router.http.exchange import Exchange
from router.http.inner_exchange import InnerWire, Turn
from router.request.errors import write_error
from router.resume.event_log import Moved

if TYPE_CHECKING:
    from router.content.conversations.response_store import ResponseStore
    from router.content.lookup import Owner
    from router.core.record import Record
    from router.http.exchange import Headers, Request
    from router.resume.event_log import EventLog, EventSink

log = logging.getLogger(__name__)

MOST_RUNS_EACH = 100
_COME_BACK_S = 1.0
_LEASE_S = 30.0
_RENEWED_S = 5.0
_KEEP_ALIVE_S = 10.0


class UnreadExchange(Exchange):
    """What is written goes to the log of events; `client_left` is how it is cancelled.

    `tail` holds the last of it: they are told when the end is stored.
    """

    __slots__ = ("_sink", "tail")

    def __init__(self, request: Request, sink: EventSink) -> None:
        super().__init__(request, InnerWire())
        self._sink = sink
        self.tail = b""

    def start(self, status: int, headers: Headers, length_bytes: int | None = None) -> None:
        self.started = True

    @property
    def is_taken(self) -> bool:
        """Another router makes the response: it thought that this one was gone."""
        return self._sink.is_taken

    def send(self, data: bytes) -> Awaitable[None]:
        if self.is_taken:
            raise Moved
        self._sink.add(sse.split(data))
        return Turn()

    def fill_silence(self, data: bytes) -> None: ...

    def respond(self, status: int, body: bytes, headers: Headers) -> None:
        self.ended = True

    def end(self, data: bytes = b"") -> None:
        self.tail = data
        self.ended = True


class Run:
    """One response under way; `head` is what it says of its request."""

    def __init__(
        self, response_id: str, owner: Owner, head: dict[str, Any], record: Record, exchange: UnreadExchange
    ) -> None:
        self.id = response_id
        self.owner = owner
        self.exchange = exchange
        self.ended = asyncio.Event()
        self._head = head
        self._record = record

    @property
    def response(self) -> dict[str, Any]:
        """As it is at the moment."""
        status = "queued" if self._record.dispatched_s is None else "in_progress"
        return {**self._head, "status": status}

    def cancel(self) -> None:
        self.exchange.client_left()


class Background:
    """The runs of this router. Each has a lease in the store, by which other routers know that it goes on.

    Whoever takes the lease away, by cancelling or deleting the response anywhere, has the run cancelled.
    """

    def __init__(
        self, store: ResponseStore, events: EventLog, clock: Callable[[], float] = time.time
    ) -> None:
        self.events = events
        self._store = store
        self._clock = clock
        self._runs: dict[str, Run] = {}
        self._of: Counter[str] = Counter()
        self._renewing: asyncio.Task[None] | None = None

    @property
    def lease_s(self) -> float:
        """Until when a run that begins or goes on now can be trusted to."""
        return self._clock() + _LEASE_S

    def find(self, owner: Owner, response_id: str) -> Run | None:
        run = self._runs.get(response_id)
        return run if run is not None and run.owner == owner else None

    @contextmanager
    def place(self, tenant: str) -> Iterator[None]:
        """One of those that a tenant has; raises RATE_LIMITED where all are taken."""
        if self._of[tenant] >= MOST_RUNS_EACH:
            message = (
                f"this organisation already has {MOST_RUNS_EACH} responses in progress in the background"
            )
            raise InflightError(ErrorKind.RATE_LIMITED, message, "background", _COME_BACK_S)
        self._of[tenant] += 1
        try:
            yield
        finally:
            self._of[tenant] -= 1
            if not self._of[tenant]:
                del self._of[tenant]

    @contextmanager
    def running(self, run: Run) -> Iterator[None]:
        """For a response that is in the store."""
        self._runs[run.id] = run
        if self._renewing is None:
            self._renewing = asyncio.get_running_loop().create_task(self._renew())
        try:
            yield
        finally:
            del self._runs[run.id]
            if not self._runs and self._renewing is not None:
                self._renewing.cancel()
                self._renewing = None
            run.ended.set()

    async def cancelled(self, run: Run) -> None:
        """Returns when it has ended, and its end is stored."""
        run.cancel()
        await run.ended.wait()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_RENEWED_S)
            asked = list(self._runs.values())
            try:
                going_on = await self._store.renew([run.id for run in asked], self.lease_s)
            except InflightError as error:
                log.warning("the leases of background responses could not be renewed: %s", error.message)
                continue
            for run in asked:
                if run.id not in going_on:
                    run.cancel()


async def deliver(exchange: Exchange, record: Record, events: AsyncIterator[Sequence[bytes]]) -> None:
    """Events as they come, for as long as somebody reads them."""

    async def send() -> None:
        async for some in events:
            await exchange.send(b"".join(some))

    async def keep_alive() -> None:
        """From the beginning, so that there is a status however long the next event may take."""
        while not exchange.gone:
            exchange.fill_silence(sse.COMMENT)
            await asyncio.sleep(_KEEP_ALIVE_S)

    exchange.start(200, [*sse.HEADERS, *record.headers()])
    alive = asyncio.get_running_loop().create_task(keep_alive())
    try:
        await unless_left(send(), exchange.on_disconnect)
    except InflightError as error:
        write_error(exchange, record, error)
    else:
        exchange.end()
    finally:
        alive.cancel()
