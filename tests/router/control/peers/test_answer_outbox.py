"""Readers hear what is written in its order, whatever becomes of Redis while it is on its way there."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

import pytest

from router.control.peers import answer_outbox
from router.control.peers.answer_outbox import AnswerSink, Outbox
from router.control.peers.redis_link import RedisAway, RedisLink
from router.resume.memory_log import KeptAnswer, MemoryEventLog

LIMIT_S = 20.0


class Refusal(Exception):
    """Of one command."""


class Pipe:
    def __init__(self, redis: SlowRedis) -> None:
        self._redis = redis
        self._ids: list[str] = []

    def __len__(self) -> int:
        return len(self._ids)

    def xadd(self, key: str, fields: dict[bytes, bytes], id: str, nomkstream: bool) -> None:
        self._ids.append(id)

    def pexpire(self, key: str, kept_ms: int) -> None:
        self._ids.append("")

    def exists(self, key: str) -> None:
        self._ids.append("")

    async def execute(self, raise_on_error: bool) -> list[Any]:
        return await self._redis.take(self._ids)


class SlowRedis:
    """Each batch gets an answer when the test says which: None, or the error."""

    refusal = Refusal
    prefix = ""

    def __init__(self) -> None:
        self.redis = self
        self.asked: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()
        self.kept: list[str] = []
        self.is_frozen = False

    def pipeline(self, transaction: bool) -> Pipe:
        return Pipe(self)

    async def take(self, ids: list[str]) -> list[Any]:
        reply: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.asked.put_nowait(reply)
        await reply
        self.kept += [each for each in ids if each]
        return [each.encode() for each in ids]

    async def ask(self, asked: Any) -> Any:
        return await asked


def new() -> tuple[SlowRedis, Outbox, KeptAnswer, AnswerSink]:
    redis = SlowRedis()
    outbox = Outbox(cast("RedisLink", redis), 600.0, lambda: 0.0)
    local = MemoryEventLog().open("acme", "answer")
    return redis, outbox, local, AnswerSink(outbox, "key", local, 1)


def event(number: int) -> bytes:
    return b"%d" % number


async def test_what_waited_while_a_batch_was_lost_is_told_before_what_comes_later() -> None:
    redis, _, local, sink = new()
    sink.add([event(0)])
    under_way = await redis.asked.get()
    sink.add([event(1)])  # waits for the next batch
    under_way.set_exception(RedisAway("no answer"))
    await asyncio.sleep(0)
    sink.add([event(2)])  # Redis is known to be away: nobody waits for it
    await asyncio.sleep(0)
    assert local.events == [event(number) for number in range(3)]
    (await asyncio.wait_for(redis.asked.get(), LIMIT_S)).set_result(None)


async def test_readers_hear_all_at_once_when_somebody_else_finds_redis_away() -> None:
    redis, outbox, local, sink = new()
    sink.add([event(0)])
    under_way = await redis.asked.get()
    outbox.lost(RedisAway("a claim had no answer"))
    sink.add([event(1)])
    assert local.events == [event(0), event(1)]
    under_way.set_result(None)
    (await asyncio.wait_for(redis.asked.get(), LIMIT_S)).set_result(None)
    await asyncio.sleep(0)
    assert local.events == [event(0), event(1)]


async def test_an_answer_that_lost_its_place_in_redis_is_told_in_order() -> None:
    redis, _, local, sink = new()
    sink.add([event(0)])
    under_way = await redis.asked.get()
    sink.add([event(1)])
    sink.is_lost = True  # evicted, say
    sink.add([event(2)])
    under_way.set_result(None)
    await asyncio.sleep(0)
    assert local.events == [event(number) for number in range(3)]


async def test_nobody_is_told_what_comes_after_another_router_took_the_answer() -> None:
    redis, _, local, sink = new()
    sink.add([event(0)])
    (await redis.asked.get()).set_result(None)
    await asyncio.sleep(0)
    sink.taken()
    sink.is_lost = True
    sink.add([event(1)])
    assert local.events == [event(0)]


@pytest.mark.parametrize("seed", range(20))
async def test_the_order_holds_in_any_sequence_of_outages(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.control.peers.answer_outbox._PAUSE_S", 0.001)
    chance = random.Random(seed)
    redis, outbox, local, sink = new()
    for number in range(60):
        sink.add([event(number)])
        for _ in range(chance.randrange(3)):
            await asyncio.sleep(0.001 * chance.randrange(2))
        if chance.random() < 0.1:
            outbox.lost(RedisAway("elsewhere"))
        if chance.random() < 0.5 and not redis.asked.empty():
            reply = redis.asked.get_nowait()
            if chance.random() < 0.4:
                reply.set_exception(RedisAway("no answer"))
            else:
                reply.set_result(None)
    while "1-61" not in redis.kept:
        if not redis.asked.empty():
            redis.asked.get_nowait().set_result(None)
        await asyncio.sleep(0.001)
    assert local.events == [event(number) for number in range(60)]
    numbers = [int(each.partition("-")[2]) for each in redis.kept]
    assert numbers == sorted(set(numbers))


async def test_nothing_is_written_once_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_outbox, "_PAUSE_S", 0.01)
    redis, outbox, _, sink = new()
    sink.add([event(0)])
    late = await redis.asked.get()
    await outbox.close()
    await asyncio.sleep(0)
    assert late.cancelled()
    assert asyncio.all_tasks() == {asyncio.current_task()}
