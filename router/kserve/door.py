"""What Triton's HTTP and gRPC clients have in common: the models, how a request runs, who asked how often."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from router.core.embedding import ServedEmbedder
from router.kserve import descriptions, statistics
from router.kserve.embedding import embedding_offer
from router.kserve.generation import generation_offer
from router.kserve.llmapi import llmapi_offer
from router.kserve.offers import STEP_VERSION, Asked, Delivery, Offer, Offers
from router.kserve.statistics import Row, Statistics
from router.kserve.tensor_models import tensor_offer
from router.request.aside import LARGE_BYTES
from router.routing.models import Registry, Served, ServedModel, ServedTensors

if TYPE_CHECKING:
    from collections.abc import Callable

    from python_backend.wire.errors import InflightError
    from router.core.record import Record
    from router.core.tenant import Caller, Scope
    from router.kserve.answers import Answer
    from router.request.answer import Answers
    from router.request.permit import OnLeave

_READY_CACHE_S = 0.5
Given = TypeVar("Given")
Read = TypeVar("Read")


def offer_of(served: Served) -> Offer:
    if isinstance(served, ServedModel):
        return generation_offer(served)
    if isinstance(served, ServedEmbedder):
        return embedding_offer(served)
    assert isinstance(served, ServedTensors)
    return tensor_offer(served)


class Counted:
    """A delivery whose request is in the statistics before its client knows that it has ended."""

    def __init__(self, delivery: Delivery, statistics: Statistics, record: Record) -> None:
        self._delivery = delivery
        self._statistics = statistics
        self._record = record
        self._is_counted = False

    async def take(self, answer: Answer) -> None:
        if answer.final:
            self.count(finished=True)
        await self._delivery.take(answer)

    def fail(self, error: Exception) -> None:
        self._delivery.fail(error)

    def count(self, finished: bool) -> None:
        if not self._is_counted:
            self._is_counted = True
            self._statistics.add(self._record, finished, time.monotonic())


class Door:
    def __init__(self, models: Registry, answers: Answers) -> None:
        self.offers = Offers(models, offer_of, llmapi_offer)
        self.statistics = Statistics()
        self._models = models
        self._answers = answers
        self._ready: dict[tuple[str, int], tuple[float, bool]] = {}
        self._asking = asyncio.Lock()

    def enter(self, record: Record, scope: Scope, asks_model: bool) -> None:
        """As the router's HTTP endpoints do: limits are asked before anything else."""
        self._answers.permits.enter(record, scope, asks_model)

    def foresee(self, caller: Caller, scope: Scope, asks_model: bool) -> None:
        """Raises what `enter` would raise now."""
        self._answers.permits.foresee_entry(caller, scope, asks_model)

    def uncount(self, record: Record, error: InflightError) -> None:
        self._answers.permits.uncount(record, error)

    def hold_s(self, record: Record, error: InflightError) -> float:
        return self._answers.permits.hold_s(record, error)

    async def understand(
        self, record: Record, size_bytes: int, read: Callable[[Given], Read], given: Given
    ) -> Read:
        """Reads a request, beside the event loop where that may take long."""
        if size_bytes > LARGE_BYTES:
            return await self._answers.aside.run(record.tenant, read, given)
        return read(given)

    async def infer(
        self, record: Record, asked: Asked, whole: bool, delivery: Delivery, on_leave: OnLeave
    ) -> None:
        """Raises what the delivery was told of."""
        record.ask_tier(asked.parameters.tier)
        record.deadline_s = min(record.deadline_s, record.arrived_s + asked.parameters.timeout_s)
        counted = Counted(delivery, self.statistics, record)
        make = partial(asked.offer.job, asked, record, whole)
        job = await self.understand(record, asked.elements, make, counted)
        try:
            await self._answers.answer(job, record, on_leave)
        finally:
            if record.outcome:
                counted.count(finished=False)

    async def is_ready(self, served: Served) -> bool:
        """Asks Triton at most twice a second, however many ask us."""
        release = (served.name, served.version)
        async with self._asking:
            asked_s, ready = self._ready.get(release, (0.0, False))
            if time.monotonic() - asked_s > _READY_CACHE_S:
                ready = await served.ready()
                self._ready[release] = (time.monotonic(), ready)
            return ready and not self._answers.permits.draining

    async def all_ready(self) -> bool:
        """As GET /health/ready says it: the stable releases of the main models decide."""
        lineups = self._models.lineups.values()
        deciding = [lineup.stable for lineup in lineups if lineup.is_main]
        return all([stable is not None and await self.is_ready(stable) for stable in deciding])

    async def index(self, caller: Caller) -> list[dict[str, str]]:
        """Every release that the caller may ask."""
        served = [offer.served for offer in self.offers.for_caller(caller)]
        ready = [await self.is_ready(each) for each in served]
        found = zip(served, ready, strict=True)
        return descriptions.index((each.name, str(each.version), yes) for each, yes in found)

    def tell_config(self, name: str, version: str, caller: Caller) -> dict[str, Any]:
        """Of a model, or of a step inside one."""
        found = self.offers.find_step(name, version, caller)
        if found is not None:
            return descriptions.step_config(found[1], name, found[0].max_batch_size)
        return descriptions.config(self.offers.find(name, version, caller), name)

    def tell_statistics(self, name: str, version: str, caller: Caller) -> dict[str, Any]:
        """Of one release or step, of all releases of one model, or of all that the caller may ask."""
        rows = self._every_row(caller) if not name else self._rows(name, version, caller)
        return statistics.describe(rows)

    def _rows(self, name: str, version: str, caller: Caller) -> list[Row]:
        found = self.offers.find_step(name, version, caller)
        if found is not None:
            return [self._row(found[0], name, caller, found[1].model)]
        return [self._row(offer, name, caller) for offer in self.offers.find_all(name, version, caller)]

    def _every_row(self, caller: Caller) -> list[Row]:
        """Under the models' own names first; then under Triton's, by which its tools look for an ensemble."""
        offers = self.offers.for_caller(caller)
        rows = [self._row(offer, offer.served.name, caller) for offer in offers]
        for offer in offers:
            alias = self.offers.alias(offer)
            if alias:
                rows.append(self._row(offer, alias, caller))
            rows += [self._row(offer, name, caller, step.model) for name, step in offer.steps.items()]
        return rows

    def _row(self, offer: Offer, name: str, caller: Caller, step: str = "") -> Row:
        served, tenant = offer.served, caller.organisation.id
        tally = self.statistics.of(tenant, served.name, str(served.version))
        return Row(name, STEP_VERSION if step else str(served.version), tally, step)
