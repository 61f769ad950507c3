"""Two real routers and a real Redis."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from redis import Redis

from router.assembly import run_until_closed
from router.control.peers.board import BoardAway, RedisBoard
from router.control.peers.peer_sync import PeerSync, open_board
from router.core.tenant import Limits
from router.settings import SettingsError
from router.telemetry.collectors import PeerMetrics
from tests.fakes.triton_server import FakeTriton
from tests.router.control.peers.redis_server import RedisServer, running_redis
from tests.router.process import started_router
from tests.router.running import RunningRouter, running_router


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with running_redis() as running:
        yield running


@pytest.fixture
async def pair(redis: RedisServer, tmp_path: Path) -> AsyncIterator[tuple[RunningRouter, RunningRouter]]:
    """Behind them the same store, between them Redis."""
    async with AsyncExitStack() as closing:
        routers = [await closing.enter_async_context(running_router(data_dir=tmp_path)) for _ in range(2)]
        for router in routers:
            tenancy = router.parts.tenancy
            sync = PeerSync(open_board(redis.url, tenancy.deployment), tenancy.ledger)
            router.metrics.expose(PeerMetrics(sync))
            await sync.swap()
            run_until_closed(closing, sync.run())
        yield routers[0], routers[1]


def reachable(router: RunningRouter) -> bool:
    return router.metric("inflight_redis_reachable") == 1.0


async def until(holds: Callable[[], Awaitable[bool]], limit_s: float = 30.0) -> None:
    """What a router says lasts two seconds: one that got no processor for so long has to say it again."""
    deadline_s = time.monotonic() + limit_s
    while not await holds():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.05)


def words(client: Redis) -> list[bytes]:
    """Of all routers; the other keys are who is there."""
    return [key for key in client.scan_iter("inflight:*") if not key.endswith(b":routers")]


async def statuses(router: RunningRouter, key: str, count: int) -> list[int]:
    headers = {"Authorization": f"Bearer {key}"}
    body = {"model": "tiny", "prompt": "hi", "max_tokens": 1}
    answers = [await router.http.post("/v1/completions", json=body, headers=headers) for _ in range(count)]
    return [answer.status_code for answer in answers]


async def test_a_limit_holds_over_two_routers_and_each_counts_alone_while_redis_is_unreachable(
    pair: tuple[RunningRouter, RunningRouter], redis: RedisServer
) -> None:
    here, there = pair
    limits = Limits(requests_per_min=10)
    tenant = await here.new_tenant(limits=limits)
    key = await here.new_key(tenant)
    await there.until(lambda: there.parts.tenancy.catalogue.has_keys)
    await here.until(lambda: here.metric("inflight_other_routers") == 1.0)

    assert await statuses(here, key, 8) == [200] * 8
    await asyncio.sleep(0.6)  # two exchanges
    answered = await statuses(there, key, 5)
    assert answered.count(200) in (2, 3)  # a tenth of a minute may have passed

    redis.stop()
    await here.until(lambda: not reachable(here) and not reachable(there))
    more = replace(limits, requests_per_min=100_000, request_burst=100_000)
    other = await here.new_tenant("other", more)
    key = await here.new_key(other)
    await there.until_async(lambda: statuses(there, key, 1), [200])
    assert await statuses(here, key, 3) == [200] * 3

    redis.start()
    await here.until(lambda: reachable(here) and reachable(there), timeout_s=8)
    await here.until(lambda: here.metric("inflight_other_routers") == 1.0, timeout_s=8)


async def test_deployments_on_one_redis_are_isolated_and_a_closed_router_is_gone(redis: RedisServer) -> None:
    here, there, strange = (RedisBoard(redis.url, name) for name in ("one", "one", "other"))
    await here.swap("a", b"first")
    assert await strange.swap("c", b"third") == {}
    assert await there.swap("b", b"second") == {"a": b"first"}
    assert await here.swap("a", b"first") == {"b": b"second"}
    await there.close("b")
    assert await here.swap("a", b"first") == {}
    await here.close("a")
    await strange.close("c")


async def test_a_wrong_redis_password_is_reported_without_the_right_one(redis: RedisServer) -> None:
    board = RedisBoard(redis.url.replace("not-a-secret", "wrong"), "one")
    with pytest.raises(BoardAway, match="invalid username-password"):
        await board.swap("a", b"")
    await board.close("a")


@pytest.mark.parametrize("url", ["https://:secret@host", "redis://:secret@host?nonsense=1"])
def test_a_url_of_another_scheme_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(SettingsError, match="redis_url: expected redis://") as raised:
        open_board(url, "one")
    assert "secret" not in str(raised.value)


def test_without_the_redis_package_the_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(SettingsError, match=r"pip install 'inflight\[redis\]'"):
        open_board("redis://127.0.0.1", "one")


async def test_a_router_process_shares_by_its_settings(redis: RedisServer, tmp_path: Path) -> None:
    triton = await FakeTriton().start()
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    settings = tmp_path / "router.toml"
    settings.write_text(
        f'port = 0\ntriton_servers = [{{ url = "{triton.url}" }}]\ndata_dir = "{tmp_path}"\n'
        f'redis_url = "{redis.url}"\n[[models]]\nname = "tiny"\ncheckpoint_dir = "{tmp_path}"\n'
    )
    client = Redis.from_url(redis.url)
    try:
        async with started_router(settings) as started:
            async with httpx.AsyncClient(trust_env=False, verify=False) as http:

                async def is_sharing() -> bool:
                    metrics = (await http.get(f"http://127.0.0.1:{started.port}/metrics")).text
                    return "inflight_redis_reachable 1.0" in metrics and len(words(client)) == 1

                await until(is_sharing)
            started.process.terminate()
            assert await started.process.wait() == 0

        async def is_forgotten() -> bool:
            return words(client) == []

        await until(is_forgotten)
    finally:
        client.close()
        await triton.stop()
