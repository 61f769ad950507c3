from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router.control.peers import redis_link
from router.control.peers.redis_link import RedisAway, RedisLink


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
