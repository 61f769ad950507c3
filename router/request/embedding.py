"""Texts or token ids on their way to vectors: all calls that one request makes, a few of them at once."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import replace
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any

from python_backend.wire.errors import InflightError
from router.core.answer_text import Answered
from router.core.embedding import CALLS_AT_ONCE, ServedEmbedder
from router.core.record import new_request_id
from router.request.repetition import StopWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from router.admission.demand import Need
    from router.core.embedding import Embedder, EmbeddingAnswer, EmbeddingCall
    from router.core.record import Record
    from router.request.permit import Permit, Stoppable
    from router.routing.models import Served
    from router.safety.guard import Safety


class EmbeddingJob:
    """What embeddings have in common, whatever door they came through; a door says how they are delivered."""

    def __init__(
        self, record: Record, served: ServedEmbedder, calls: Sequence[EmbeddingCall], need: Need
    ) -> None:
        self.served = served
        self.need = need
        self.calls = calls
        self.record = record
        self._kept: dict[int, EmbeddingAnswer] | None = None

    async def check(self, safety: Safety) -> None:
        """No text comes out of it, so only what goes in is read: texts, not ids."""
        texts = [row for call in self.calls for row in call.rows if isinstance(row, str)]
        await safety.admit(self.served.name, texts, self.record.tenant)

    async def run(self, permit: Permit) -> None:
        try:
            await EmbeddingRun(self.served.embedder, self.calls, self.record).finish(permit, self._take)
        except InflightError as error:
            if not error.kind.is_callers_fault:
                permit.model_failed(error)
            raise
        await self.deliver(permit)

    def take(self, number: int, answer: EmbeddingAnswer) -> None:
        """The answer to one call, as soon as it is there."""
        raise NotImplementedError

    async def deliver(self, permit: Permit) -> None:
        """All answers are there."""
        raise NotImplementedError

    def fail(self, error: InflightError) -> None:
        """Who called is told by the error itself."""

    async def settle(self) -> None:
        """The run has ended all of its calls by itself."""

    def keep(self) -> None:
        self._kept = {}

    def prompts(self) -> Sequence[str]:
        return ()

    def told(self) -> Sequence[str]:
        return ()

    def answered(self) -> Answered | None:
        kept = self._kept or {}
        return _joined([kept[number] for number in sorted(kept)]) if len(kept) == len(self.calls) else None

    def repeat(
        self, served: Served, attach: Callable[[Stoppable], None]
    ) -> Coroutine[Any, Any, Answered] | None:
        return self._repeat(served) if isinstance(served, ServedEmbedder) else None

    async def _repeat(self, served: ServedEmbedder) -> Answered:
        """One call after the other: there is no hurry."""
        watch = StopWatch()
        answers = [
            await served.embedder.embed(call, new_request_id("shadow"), self.record.tenant)
            for call in self.calls
        ]
        return replace(_joined(answers), times=watch.whole())

    def _take(self, number: int, answer: EmbeddingAnswer) -> None:
        if self._kept is not None:
            self._kept[number] = answer
        self.take(number, answer)


def _joined(answers: Sequence[EmbeddingAnswer]) -> Answered:
    vectors = b"".join(answer.vectors for answer in answers)
    return Answered(vectors=vectors, rows=sum(len(answer.tokens) for answer in answers))


class EmbeddingRun:
    """All calls of one request, a few of them at once; a permit that is cut ends it, whatever it waits for.

    Each answer goes to `take` with the number of its call as soon as it is there: rows are rendered while
    the model computes the next ones, and never so many in one go that other requests have to wait. Where
    others wait for the model, it gives way between its calls: however long a list is, they are not behind it.
    """

    def __init__(self, embedder: Embedder, calls: Sequence[EmbeddingCall], record: Record) -> None:
        self._embedder = embedder
        self._record = record
        self._waiting = deque(enumerate(calls))
        self._workers: list[asyncio.Task[None]] = []
        self.lost_attempts = 0

    async def finish(self, permit: Permit, take: Callable[[int, EmbeddingAnswer], None]) -> None:
        permit.attach(self)
        self._record.dispatched_s = time.monotonic()
        try:
            while self._waiting and permit.cut_by is None:
                await self._turn(permit, take)
                if self._waiting and permit.cut_by is None:
                    await permit.give_way(sum(len(call.rows) for _, call in self._waiting))
        finally:
            self.stop()
            if running := [worker for worker in self._workers if not worker.done()]:
                await asyncio.wait(running)
            self._record.received_s = time.monotonic()
        if permit.cut_by is not None:
            raise permit.cut_by.again()

    def stop(self) -> None:
        """Nothing more is asked for; stopping what has ended does nothing."""
        for worker in self._workers:
            worker.cancel()

    async def _turn(self, permit: Permit, take: Callable[[int, EmbeddingAnswer], None]) -> None:
        """Until all calls are answered, or others wait; raises what the first call that failed did."""
        at_once = self._fitting(permit.slots)
        self._workers = [asyncio.ensure_future(self._work(permit, take)) for _ in range(at_once)]
        await asyncio.wait(self._workers, return_when=asyncio.FIRST_EXCEPTION)
        for worker in self._workers:
            if worker.done() and not worker.cancelled() and permit.cut_by is None:
                worker.result()

    def _fitting(self, slots: int) -> int:
        """How many of the next calls have no more rows than that; one has to go in any case."""
        sizes = accumulate(len(call.rows) for _, call in islice(self._waiting, CALLS_AT_ONCE))
        return max(sum(rows <= slots for rows in sizes), 1)

    async def _work(self, permit: Permit, take: Callable[[int, EmbeddingAnswer], None]) -> None:
        record = self._record
        while self._waiting:
            number, call = self._waiting.popleft()
            answer = await self._embedder.embed(call, f"{record.request_id}-{number}", record.tenant)
            record.prompt_tokens += sum(answer.tokens)
            self.lost_attempts += answer.lost_attempts
            take(number, answer)
            if permit.is_wanted:
                return
