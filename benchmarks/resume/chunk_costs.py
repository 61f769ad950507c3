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
from router.resume.event_log import EventLog
from router.resume.keyed_requests import KeyedRequests
from router.resume.memory_log import MemoryEventLog

CHUNKS = 500
_ROUNDS = 7
_PATH = "/v1/chat/completions"


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
    dialect = ChatDialect(record.request_id, "model", record.began_s)
    exchange.start(200, [*dialect.headers, *record.headers()])
    delta = Delta(" word", completion_tokens=1, prompt_tokens=20)
    for _ in range(CHUNKS):
        if record.journal is not None:
            record.journal.note(0, delta)  # type: ignore[attr-defined]  # of a Retelling
        await exchange.send(dialect.text_event(0, delta.text))
        await asyncio.sleep(0)
    exchange.end(dialect.closing([]))


async def _cost_us(begin: Callable[[Exchange, Record], Awaitable[None]], streams: int) -> float:
    """Of one chunk, the median of several rounds."""
    costs = []
    for _ in range(_ROUNDS):
        asked = []
        for number in range(streams):
            headers = {"idempotency-key": f"{number}-{time.time_ns()}"}
            exchange = Exchange(Request("POST", _PATH, headers, b"{}"), _Nowhere())
            asked.append((exchange, Record(_PATH, f"chatcmpl-{number}")))
        before_s = time.process_time()
        await asyncio.gather(*(begin(exchange, record) for exchange, record in asked))
        costs.append((time.process_time() - before_s) / (streams * CHUNKS) * 1e6)
    return median(costs)


async def measure(redis_url: str) -> list[tuple[str, int, float]]:
    """How it is kept, streams at once, and what a chunk costs."""

    def kept_in(log: EventLog) -> Callable[[Exchange, Record], Awaitable[None]]:
        keyed = KeyedRequests(log)
        return lambda exchange, record: keyed.answer(exchange, record, _answer)

    link = RedisLink(redis_url, "benchmark")
    ways = {
        "without a key": _answer,
        "with a key, in memory": kept_in(MemoryEventLog()),
        "with a key, in Redis": kept_in(SharedEventLog(link, "router")),
    }
    try:
        return [
            (how, streams, await _cost_us(begin, streams))
            for streams in (1, 16)
            for how, begin in ways.items()
        ]
    finally:
        await link.close()
