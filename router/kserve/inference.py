"""The life of one inference: admitted, run, delivered, settled."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Protocol

from python_backend.wire.errors import InflightError
from router.kserve import descriptions
from router.kserve.statistics import Statistics
from router.kserve.transcript import Transcript
from router.request.permit import admitted

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.core.record import Record
    from router.core.tenant import Caller
    from router.kserve.answers import Answer
    from router.kserve.offers import Asked, Offers
    from router.request.service import Service
    from router.routing.models import Served

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
        self._ready: dict[tuple[str, int], tuple[float, bool]] = {}
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
        record.ask_tier(asked.parameters.tier)
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
            name = asked.offer.served.name
            async with admitted(service, record, name, job.need, on_leave) as ticket:
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

    async def is_ready(self, served: Served) -> bool:
        """Asks Triton at most twice a second, however many ask us."""
        release = (served.name, served.version)
        async with self._asking:
            asked_s, ready = self._ready.get(release, (0.0, False))
            if time.monotonic() - asked_s > _READY_CACHE_S:
                ready = await served.ready()
                self._ready[release] = (time.monotonic(), ready)
            return ready and not self.service.desk.draining

    async def all_ready(self) -> bool:
        """As GET /health/ready says it: the stable releases of the main models decide."""
        lineups = self.service.registry.lineups.values()
        deciding = [lineup.stable for lineup in lineups if lineup.is_main]
        return all([stable is not None and await self.is_ready(stable) for stable in deciding])

    async def index(self, caller: Caller) -> list[dict[str, str]]:
        """Every release that the caller may ask."""
        served = [offer.served for offer in self.offers.for_caller(caller)]
        ready = [await self.is_ready(each) for each in served]
        found = zip(served, ready, strict=True)
        return descriptions.index((each.name, str(each.version), yes) for each, yes in found)

    def tell_statistics(self, name: str, version: str, caller: Caller) -> dict[str, Any]:
        """Of one release, of all those of one model, or of all that the caller may ask."""
        if name:
            found = [(name, offer.served) for offer in self.offers.find_all(name, version, caller)]
        else:
            found = [(offer.served.name, offer.served) for offer in self.offers.for_caller(caller)]
        tenant = caller.organisation.id
        return descriptions.statistics(
            (called, str(served.version), self.statistics.of(tenant, served.name, str(served.version)))
            for called, served in found
        )
