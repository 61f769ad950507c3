"""The port between the router and whatever turns texts into vectors, and how one request uses it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from router.core.record import Record
    from router.request.ticket import Ticket

# So many calls of one request are under way at once: enough to fill a batch, few enough for others.
CALLS_AT_ONCE = 4
TokenIds = list[int]


class EmbeddingLimits(msgspec.Struct, frozen=True):
    """What one model takes and gives; a text is cut at `max_tokens`."""

    dimensions: int
    vocabulary: int
    max_tokens: int


class EmbeddingCall(msgspec.Struct, frozen=True):
    """One request to the model: texts or token ids, a row each."""

    rows: list[str] | list[TokenIds]
    dimensions: int
    most_tokens: int  # what it can come to, to be reserved before it is sent


class EmbeddingAnswer(msgspec.Struct, frozen=True):
    """What the model says to one call: vectors in little-endian fp32, end to end, and tokens of each row."""

    vectors: bytes
    tokens: list[int]


class Embedder(Protocol):
    """One model that makes embeddings."""

    async def embed(self, call: EmbeddingCall, request_id: str, tenant: str) -> EmbeddingAnswer:
        """Raises InflightError when the call fails; a cancelled one leaves nothing behind."""

    async def ready(self) -> bool:
        """Whether a call made now would be answered."""


@dataclass(frozen=True, slots=True)
class ServedEmbedder:
    name: str
    embedder: Embedder
    limits: EmbeddingLimits
    created_s: int = field(default_factory=lambda: int(time.time()))
    version: int = 1
    triton_name: str = "embeddings"

    async def ready(self) -> bool:
        return await self.embedder.ready()


class EmbeddingRun:
    """All calls of one request, a few of them at once; a ticket that is cut ends it, whatever it waits for.

    Each answer goes to `take` with the number of its call as soon as it is there: rows are rendered while
    the model computes the next ones, and never so many in one go that other requests have to wait.
    """

    def __init__(self, embedder: Embedder, calls: Sequence[EmbeddingCall], record: Record) -> None:
        self._embedder = embedder
        self._record = record
        self._size = len(calls)
        self._waiting = enumerate(calls)
        self._workers: list[asyncio.Task[None]] = []

    async def finish(self, ticket: Ticket, take: Callable[[int, EmbeddingAnswer], None]) -> None:
        ticket.attach(self)
        self._record.dispatched_s = time.monotonic()
        try:
            if ticket.cut_by is None:
                at_once = min(CALLS_AT_ONCE, self._size)
                self._workers = [asyncio.ensure_future(self._work(take)) for _ in range(at_once)]
                await asyncio.wait(self._workers, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            self.stop()
            if running := [worker for worker in self._workers if not worker.done()]:
                await asyncio.wait(running)
            self._record.received_s = time.monotonic()
        failures = [worker.exception() for worker in self._workers if not worker.cancelled()]
        if ticket.cut_by is not None:
            raise ticket.cut_by.again()
        for failure in failures:
            if failure is not None:
                raise failure

    def stop(self) -> None:
        """Nothing more is asked for; stopping what has ended does nothing."""
        for worker in self._workers:
            worker.cancel()

    async def _work(self, take: Callable[[int, EmbeddingAnswer], None]) -> None:
        record = self._record
        for number, call in self._waiting:
            answer = await self._embedder.embed(call, f"{record.request_id}-{number}", record.tenant)
            record.prompt_tokens += sum(answer.tokens)
            take(number, answer)


SPECIAL_TOKENS = 2  # around each text
