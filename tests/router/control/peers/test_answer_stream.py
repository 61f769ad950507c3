"""Answers in a real Redis that somebody waits for."""

from __future__ import annotations

import asyncio
import time

from router.control.peers.answer_stream import StreamPoller
from router.control.peers.redis_link import RedisLink
from tests.router.control.peers.redis_server import running_redis


async def test_nobody_asks_for_a_reader_that_has_left() -> None:
    with running_redis() as redis:
        link = RedisLink(redis.url, "test")
        poller = StreamPoller(link)
        reading = asyncio.ensure_future(poller.more("nothing", b"0-0", 30))
        await asyncio.sleep(0.05)
        reading.cancel()
        deadline_s = time.monotonic() + 10
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            assert time.monotonic() < deadline_s, others
            await asyncio.sleep(0.05)
        await link.close()
