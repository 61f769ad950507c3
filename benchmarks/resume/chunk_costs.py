"""What it costs to number and keep a chunk: microseconds of a processor, side by side."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from statistics import median

from router.control.peers.redis_link import RedisLink
from router.control.peers.shared_events import SharedEventLog
from router.core.generation import Delta
from router.core.record import Record
from router.http.exchange import Exchange, Request
from router.openai.dialects import ChatDialect
from router.resume.event_log import EventLog, MemoryEventLog
from router.resume.keyed_requests import KeyedRequests

CHUNKS = 2_000
_ROUNDS = 9


class _Nowhere:
    """A client that reads everything at once."""

    def __init__(self) -> None:
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._done.set_result(None)

    def date(self) -> str:
        return ""

    def peer(self) -> str:
        return ""

    def write(self, data: bytes) -> asyncio.Future[None]:
        return self._done

    def finished(self, exchange: Exchange) -> None: ...


async def _answer(exchange: Exchange, record: Record) -> None:
    """As `TextJob` writes one: an event is encoded and sent, and the engine's next word is waited for."""
    dialect = ChatDialect(record.request_id, "model")
    exchange.start(200, [*dialect.headers, *record.headers()])
    delta = Delta(" word", completion_tokens=1, prompt_tokens=20)
    for _ in range(CHUNKS):
        if record.journal is not None:
            record.journal.note(0, delta)  # type: ignore[attr-defined]  # of a Retelling
        await exchange.send(dialect.text_event(0, delta.text))
        await asyncio.sleep(0)
    exchange.end(dialect.closing([]))


async def _cost_us(begin: Callable[[Exchange, Record, int], Awaitable[None]]) -> float:
    """Of one chunk, the median of several rounds."""
    costs = []
    for number in range(_ROUNDS):
        headers = {"idempotency-key": f"{number}-{time.time_ns()}"}
        request = Request("POST", "/v1/chat/completions", headers, b"{}")
        exchange, record = Exchange(request, _Nowhere()), Record("/v1/chat/completions", f"chatcmpl-{number}")
        before_s = time.process_time()
        await begin(exchange, record, number)
        costs.append((time.process_time() - before_s) / CHUNKS * 1e6)
    return median(costs)


async def measure(redis_url: str) -> dict[str, float]:
    async def plainly(exchange: Exchange, record: Record, number: int) -> None:
        await _answer(exchange, record)

    def kept_in(log: EventLog) -> Callable[[Exchange, Record, int], Awaitable[None]]:
        keyed = KeyedRequests(log)
        return lambda exchange, record, number: keyed.answer(exchange, record, _answer)

    link = RedisLink(redis_url, "benchmark")
    try:
        return {
            "without a key": await _cost_us(plainly),
            "with a key, in memory": await _cost_us(kept_in(MemoryEventLog())),
            "with a key, in Redis": await _cost_us(kept_in(SharedEventLog(link, "router"))),
        }
    finally:
        await link.close()
