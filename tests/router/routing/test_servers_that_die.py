"""A fleet over real connections: servers that go away while they answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.generation import GenerationCall
from router.routing.generation import FleetPipeline
from router.routing.replicas import Fleet, FleetSettings, ReplicaSet
from router.triton.server import TritonServer
from tests.fakes.fleet import MANIFEST
from tests.fakes.triton_server import FakeTriton, Reply
from tests.waiting import soon, until

WORDS = [f"w{number} " for number in range(20)]
TOLD = 5  # words, before an answer waits for its rest
AWAY_S = 600.0


class Servers:
    """As many fakes as wanted: none ends an answer before `go_on` is set."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    def tell(self, request: Any) -> list[Reply]:
        last = len(WORDS) - 1
        replies = [
            Reply(word, finish="length" if index == last else None, final=index == last)
            for index, word in enumerate(WORDS)
        ]
        replies[TOLD].after = self.go_on
        return replies


@pytest.fixture
async def closing() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def fleet(
    closing: AsyncExitStack, servers: Servers, count: int, restart_s: float = AWAY_S
) -> tuple[ReplicaSet, list[FakeTriton]]:
    fakes = [await FakeTriton(servers.tell).start() for _ in range(count)]
    tritons = [TritonServer(f"s{index}", fake.url) for index, fake in enumerate(fakes)]
    for each in fakes:
        closing.push_async_callback(each.stop)
    for triton in tritons:
        closing.push_async_callback(triton.close)
    return Fleet(tritons, restart_s=restart_s).set_of(MANIFEST), fakes


class Reader:
    """One answer, as far as it was told."""

    def __init__(self, replicas: ReplicaSet, number: int, wait_s: float = AWAY_S) -> None:
        call = GenerationCall(request_id=f"r{number}", prompt=f"prompt {number}", max_tokens=20, seed=number)
        self._generation = FleetPipeline(replicas, 8192, FleetSettings(wait_s)).generate(call)
        self._words = 0
        self.is_waiting = asyncio.Event()  # it has all that comes before the pause
        self.reading = asyncio.ensure_future(self._read())

    async def _read(self) -> str:
        text = ""
        async for delta in self._generation:
            text += delta.text
            self._words += 1
            if self._words == TOLD:
                self.is_waiting.set()
        return text


async def test_all_answers_are_whole_when_one_of_two_servers_dies(closing: AsyncExitStack) -> None:
    servers = Servers()
    replicas, fakes = await fleet(closing, servers, 2)
    readers = [Reader(replicas, number) for number in range(20)]
    await asyncio.gather(*(each.is_waiting.wait() for each in readers))
    assert all(replica.open_count for replica in replicas.replicas)
    await fakes[0].stop()
    servers.go_on.set()
    texts = await soon(asyncio.gather(*(each.reading for each in readers)))
    assert texts == ["".join(WORDS)] * 20
    assert replicas.replays > 0
    assert not replicas.replicas[0].health.is_up
    assert [replica.open_count for replica in replicas.replicas] == [0, 0]


async def test_the_answers_of_an_only_server_go_on_when_it_is_back_and_new_ones_wait_for_it(
    closing: AsyncExitStack,
) -> None:
    servers = Servers()
    replicas, (fake,) = await fleet(closing, servers, 1)
    readers = [Reader(replicas, number) for number in range(3)]
    await asyncio.gather(*(each.is_waiting.wait() for each in readers))
    await fake.stop()
    await until(lambda: not replicas.replicas[0].health.is_up)
    readers.append(Reader(replicas, 3))
    servers.go_on.set()
    await fake.start()
    texts = await soon(asyncio.gather(*(each.reading for each in readers)))
    assert texts == ["".join(WORDS)] * 4
    assert replicas.replays == 3


async def test_a_server_that_does_not_come_back_is_waited_for_once_and_then_refused_at_once(
    closing: AsyncExitStack,
) -> None:
    replicas, (fake,) = await fleet(closing, Servers(), 1, restart_s=1.0)
    first = Reader(replicas, 1)
    await first.is_waiting.wait()
    began_s = time.monotonic()
    await fake.stop()
    with pytest.raises(InflightError) as caught:
        await soon(first.reading)
    assert caught.value.kind is ErrorKind.ENGINE_FAILED
    assert time.monotonic() - began_s >= 0.9
    assert not replicas.is_coming_back
    with pytest.raises(InflightError):  # none waits that comes later, or that tries in vain
        await soon(Reader(replicas, 2).reading)
    assert not replicas.is_coming_back


async def test_nobody_waits_for_a_server_that_was_never_there(closing: AsyncExitStack) -> None:
    replicas, (fake,) = await fleet(closing, Servers(), 1)
    await fake.stop()
    with pytest.raises(InflightError):
        await soon(Reader(replicas, 1).reading)
