"""Every accepted request holds a ticket, and every ticket is given back exactly once."""

from __future__ import annotations

import asyncio
import time
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from python_backend.wire.errors import ErrorKind, InflightError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from router.core.record import Record
    from router.telemetry.metrics import Metrics


class Outcome(str, Enum):
    """The ways a request can end."""

    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Stoppable(Protocol):
    """Work that a ticket covers."""

    def stop(self) -> None:
        """Ends it early; what has ended already is not touched."""


class Ticket:
    """The right to use the engine, for the length of a `with` block.

    `cut` ends the request from outside (the client left, the router is going down): it tells the engine to
    stop, and the code that reads the deltas sees `cut_by` and ends. No task is ever cancelled for it, so
    there is no await at which a request could be lost.
    """

    def __init__(self, desk: TicketDesk, record: Record) -> None:
        self.record = record
        # Raise it `again`: with the frames that it went through it would hold on to this ticket for good.
        self.cut_by: InflightError | None = None
        # Set by whoever charges for it; for code that ends well, to call before its last bytes leave.
        self.bill: Callable[[Outcome], None] = lambda outcome: None
        # To be told, by code that hears the model, when that says the first thing.
        self.heard: Callable[[float], None] = lambda now_s: None
        self._desk = desk
        self._work: list[Stoppable] = []

    def attach(self, work: Stoppable) -> None:
        self._work.append(work)
        if self.cut_by is not None:
            work.stop()

    def cut(self, reason: InflightError) -> None:
        if self.cut_by is None:
            self.cut_by = reason.again()
            for each in self._work:
                each.stop()

    def __enter__(self) -> Ticket:
        self._desk.opened(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Whatever happened inside, the engine must not go on alone; stopping what has ended does nothing.
        for each in self._work:
            each.stop()
        self.record.outcome = self._outcome(error).value
        self._desk.closed(self)

    def _outcome(self, error: BaseException | None) -> Outcome:
        left = self.cut_by is not None and self.cut_by.kind is ErrorKind.CANCELLED
        if left or isinstance(error, asyncio.CancelledError):
            return Outcome.CANCELLED
        return Outcome.FINISHED if error is None and self.cut_by is None else Outcome.FAILED


class TicketDesk:
    """All open tickets, and whether new ones are given out."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._open: set[Ticket] = set()
        self._waiting: list[asyncio.Future[None]] = []
        self.draining = False
        self.on_drain: Callable[[], None] = lambda: None

    @property
    def open_count(self) -> int:
        return len(self._open)

    def check_open(self) -> None:
        if self.draining:
            raise InflightError(ErrorKind.OVERLOADED, "the server is shutting down")

    def admit(self, record: Record) -> Ticket:
        self.check_open()
        return Ticket(self, record)

    def drain(self) -> None:
        self.draining = True
        self.on_drain()

    async def empty(self, timeout_s: float) -> bool:
        """Waits until every ticket is back; False when that took too long."""
        if self._open:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await asyncio.wait([waiter], timeout=timeout_s)
        return not self._open

    def cut_all(self, reason: Callable[[], InflightError]) -> None:
        for ticket in list(self._open):
            ticket.cut(reason())

    def opened(self, ticket: Ticket) -> None:
        self._open.add(ticket)
        self._metrics.ticket_opened(ticket.record)

    def closed(self, ticket: Ticket) -> None:
        self._open.remove(ticket)
        self._metrics.ticket_closed(ticket.record, self._clock())
        if not self._open:
            for waiter in self._waiting:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiting.clear()
