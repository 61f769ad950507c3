"""The life of one inference: admitted, run, delivered, settled."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Protocol

from python_backend.wire.errors import ErrorKind, InflightError
from router.admission import admitted
from router.kserve.statistics import Statistics
from router.kserve.transcript import Transcript
from router.tenancy.model import Scope

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.kserve.answers import Answer
    from router.kserve.offers import Asked, Offer, Offers
    from router.record import Record
    from router.service import Service

_READY_CACHE_S = 0.5


class Delivery(Protocol):
    """The way back to one client."""

    async def take(self, answer: Answer) -> None:
        """One answer of possibly many, until the final one; waits while the client is slow to read."""

    def fail(self, error: Exception) -> None:
        """There will be no complete answer; does nothing after the final one."""


class Door:
    """What HTTP and gRPC have in common: the models, how a request to one runs, and who asked how often."""

    def __init__(self, service: Service, offers: Offers) -> None:
        self.service = service
        self.offers = offers
        self.statistics = Statistics()
        self._ready: dict[str, tuple[float, bool]] = {}
        self._asking = asyncio.Lock()

    async def infer(
        self,
        record: Record,
        asked: Asked,
        whole: bool,
        delivery: Delivery,
        on_leave: Callable[[Callable[[], None]], None],
    ) -> None:
        """Raises what the delivery was told of; `on_leave` takes a callback for when the client leaves."""
        service = self.service
        job = asked.offer.job(asked, record, whole)
        await job.check()
        transcript = Transcript(service.prompt_log, record, asked)
        finished = False

        async def take(answer: Answer) -> None:
            nonlocal finished
            if answer.final:  # before the client knows, who may ask at once
                finished = True
                self.statistics.add(record, True, time.monotonic())
            transcript.hear(answer)
            await delivery.take(answer)

        try:
            async with admitted(service, record, asked.offer.name, job.need) as ticket:
                on_leave(lambda: ticket.cut(InflightError(ErrorKind.CANCELLED, "the client left")))
                try:
                    await job.run(ticket, service.metrics, take)
                    if ticket.cut_by is not None:
                        raise ticket.cut_by.again()
                except InflightError as error:
                    if ticket.cut_by is None:
                        service.metrics.triton_failed(error.kind, record.model)
                    delivery.fail(ticket.cut_by or error)
                    raise (ticket.cut_by or error).again() from None
                finally:
                    await job.settle()
                    transcript.write()
        finally:
            if record.outcome and not finished:
                self.statistics.add(record, False, time.monotonic())

    async def is_ready(self, offer: Offer) -> bool:
        """Asks Triton at most twice a second, however many ask us."""
        async with self._asking:
            asked_s, ready = self._ready.get(offer.name, (0.0, False))
            if time.monotonic() - asked_s > _READY_CACHE_S:
                ready = await offer.ready()
                self._ready[offer.name] = (time.monotonic(), ready)
            return ready and not self.service.desk.draining

    async def all_ready(self) -> bool:
        """As GET /health/ready says it: models for embeddings do not decide."""
        deciding = [offer for offer in self.offers if offer.scope is Scope.INFERENCE]
        return all([await self.is_ready(offer) for offer in deciding])
