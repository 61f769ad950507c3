"""The pair of routers that tests of answers over several routers share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from redis import Redis

from python_backend.wire.errors import ErrorKind, InflightError
from router.control.peers import shared_events
from router.control.peers.redis_link import RedisLink
from router.control.peers.shared_events import SharedEventLog
from tests.router.control.peers.redis_server import RedisServer, running_redis
from tests.router.resume.pair import Pair
from tests.router.running import running_router


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with running_redis() as running:
        yield running


@pytest.fixture
async def pair(redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    monkeypatch.setattr(shared_events, "_LOOKS_S", 0.05)
    async with AsyncExitStack() as closing:
        routers, logs = [], []
        for name in ("first", "second"):
            log = SharedEventLog(RedisLink(redis.url, "test"), name)
            logs.append(log)
            closing.push_async_callback(log._link.close)
            closing.push_async_callback(log.close)
            routers.append(await closing.enter_async_context(running_router(data_dir=tmp_path, events=log)))
        client = closing.enter_context(Redis.from_url(redis.url))
        client.flushall()
        made = Pair(routers[0], routers[1], client, logs)
        made.lives("first")
        made.lives("second")
        yield made
        for router in routers:
            router.permits.cut_all(lambda: InflightError(ErrorKind.CANCELLED, "the test is over"))
