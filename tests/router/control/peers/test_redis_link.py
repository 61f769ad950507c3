from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from router.control.peers import redis_link
from router.control.peers.redis_link import RedisAway, RedisLink
from tests.router.control.peers.redis_server import running_redis


@pytest.fixture
def link() -> RedisLink:
    return RedisLink("redis://localhost", "test")


async def test_who_is_cancelled_as_the_answer_comes_hears_of_it(link: RedisLink) -> None:
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    asking = asyncio.ensure_future(link.ask(answer))
    await asyncio.sleep(0)
    answer.set_result(b"PONG")
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_a_question_without_an_answer_ends_in_time(
    link: RedisLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_link, "TIMEOUT_S", 0.01)
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    with pytest.raises(RedisAway, match="no answer in time"):
        await link.ask(answer)
    assert answer.cancelled()


async def test_what_redis_refuses_is_not_taken_for_its_absence(link: RedisLink) -> None:
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    answer.set_exception(link.refusal("WRONGTYPE"))
    with pytest.raises(link.refusal, match="WRONGTYPE"):
        await link.ask(answer)


async def test_a_router_that_stood_still_looks_whether_the_answer_is_there_before_it_gives_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a machine that is too busy: its time is over, and so is the wait, but not for want of Redis."""
    monkeypatch.setattr(redis_link, "TIMEOUT_S", 0.5)
    with running_redis() as redis:
        link = RedisLink(redis.url, "test")
        assert await link.ask(link.redis.ping())

        def stand_still() -> None:
            redis.thaw()
            time.sleep(3 * redis_link.TIMEOUT_S)

        redis.freeze()
        asking = asyncio.ensure_future(link.ask(link.redis.echo("there")))
        asyncio.get_running_loop().call_later(redis_link.TIMEOUT_S / 5, stand_still)
        assert await asking == b"there"
        assert not link.has_just_failed
        await link.close()
