"""POST /v1/responses with `background`: told of at once, made without a reader, and ended in the store."""

from __future__ import annotations

import asyncio
import logging
import time
from math import inf
from typing import TYPE_CHECKING

from python_backend.wire.errors import ErrorKind, InflightError
from router.content.conversations.response_store import EndedResponse
from router.core.fair_pool import unless_left
from router.core.origin import current_take
from router.http import sse
from router.openai.background import Run, UnreadExchange, deliver
from router.request.errors import respond_json

if TYPE_CHECKING:
    from router.content.conversations.response_store import ResponseStore
    from router.core.record import Record
    from router.http.exchange import Exchange
    from router.openai.background import Background
    from router.openai.response_creation import Asked, ResponseCreation
    from router.request.permit import Permits

log = logging.getLogger(__name__)

# For so long a response waits for a turn, where the queue has none for it.
_PATIENCE_S = 600.0
_LONGEST_PAUSE_S = 1.0
_FAILED = InflightError(ErrorKind.INTERNAL, "the server failed to generate this response")


class BackgroundCreation:
    """The request that asks for it stays open in the accounts until the response has ended, read or not."""

    def __init__(
        self, creation: ResponseCreation, store: ResponseStore, background: Background, permits: Permits
    ) -> None:
        self._creation = creation
        self._store = store
        self._background = background
        self._permits = permits

    async def make(self, exchange: Exchange, record: Record, asked: Asked) -> None:
        if self._permits.draining:
            raise InflightError(ErrorKind.OVERLOADED, "the server is shutting down")
        with self._background.place(record.tenant):
            await self._make(exchange, record, asked)

    async def _make(self, exchange: Exchange, record: Record, asked: Asked) -> None:
        background, body = self._background, asked.body
        dialect = asked.dialect(record.request_id)
        queued, past = dialect.queued(), asked.past
        begun = EndedResponse(asked.id, asked.created_s, queued, past.new, (), body.previous_response_id)
        sink = background.events.open(record.tenant, asked.id, current_take())
        run = Run(asked.id, asked.owner, queued, record, UnreadExchange(exchange.request, sink))
        events, following = None, None
        try:
            if body.stream:
                sink.add(sse.split(dialect.announcement()))
                events = await background.events.follow(asked.id, -1)
            else:
                background.events.forget(asked.id)
            await self._store.begin(asked.owner, begun, background.lease_s)
            with background.running(run):
                if events is not None:
                    following = asyncio.get_running_loop().create_task(deliver(exchange, record, events))
                else:
                    respond_json(exchange, record, queued)
                await self._run(run, record, asked)
        finally:
            sink.add(sse.split(run.exchange.tail))
            sink.close()
            if following is not None:
                await asyncio.wait([following])

    async def _run(self, run: Run, record: Record, asked: Asked) -> None:
        try:
            await self._answer(run, record, asked)
        except Exception as error:
            if not run.exchange.is_taken:
                known = error if isinstance(error, InflightError) else _FAILED
                await self._fail(run, record, asked, known)
            raise

    async def _answer(self, run: Run, record: Record, asked: Asked) -> None:
        until_s = time.monotonic() + _PATIENCE_S
        while True:
            try:
                await self._creation.make(run.exchange, record, asked)
                return
            except InflightError as error:
                can_wait = error.kind is ErrorKind.OVERLOADED or (
                    error.kind is ErrorKind.RATE_LIMITED and error.retry_after_s is not None
                )
                is_late = record.dispatched_s is not None or time.monotonic() > until_s
                if not can_wait or is_late or record.deadline_s < inf or self._permits.draining:
                    raise
                pause_s = min(error.retry_after_s or _LONGEST_PAUSE_S, _LONGEST_PAUSE_S)
            record.error = ""
            await unless_left(asyncio.sleep(pause_s), run.exchange.on_disconnect)

    async def _fail(self, run: Run, record: Record, asked: Asked, error: InflightError) -> None:
        dialect = asked.dialect(record.request_id)
        if not run.exchange.ended:  # nothing but the announcement was told
            run.exchange.end(dialect.failure_event(error))
        try:
            await self._store.fail(asked.owner, dialect.failure(error))
        except InflightError as away:
            log.warning("%s failed, and its failure could not be stored: %s", asked.id, away.message)
