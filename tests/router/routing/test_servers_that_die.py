"""A fleet over real connections: servers that go away while they answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.generation import GenerationCall
from router.routing.generation import FleetPipeline
from router.routing.replicas import Fleet, FleetSettings, ReplicaSet
from router.triton.server import TritonServer
from tests.fakes.fleet import MANIFEST
from tests.fakes.triton_server import FakeTriton, Reply

WORDS = [f"w{number} " for number in range(20)]


def tell(request: Any) -> list[Reply]:
    last = len(WORDS) - 1
    return [
        Reply(word, finish="length" if index == last else None, final=index == last, pause_s=0.01)
        for index, word in enumerate(WORDS)
    ]


@pytest.fixture
async def tritons() -> AsyncIterator[list[FakeTriton]]:
    fakes = [await FakeTriton(tell).start() for _ in range(2)]
    yield fakes
    for fake in fakes:
        await fake.stop()


def fleet(tritons: list[FakeTriton]) -> tuple[ReplicaSet, list[TritonServer]]:
    servers = [TritonServer(f"s{index}", triton.url) for index, triton in enumerate(tritons)]
    return Fleet(servers).set_of(MANIFEST), servers


async def read(pipeline: FleetPipeline, number: int) -> str:
    call = GenerationCall(request_id=f"r{number}", prompt=f"prompt {number}", max_tokens=20, seed=number)
    return "".join([delta.text async for delta in pipeline.generate(call)])


async def test_all_answers_are_whole_when_one_of_two_servers_dies(tritons: list[FakeTriton]) -> None:
    replicas, servers = fleet(tritons)
    pipeline = FleetPipeline(replicas, 8192, FleetSettings())
    reading = [asyncio.ensure_future(read(pipeline, number)) for number in range(20)]
    while not all(replica.open_count and replica.last_progress_s > 0 for replica in replicas.replicas):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await tritons[0].stop()
    assert await asyncio.wait_for(asyncio.gather(*reading), 10) == ["".join(WORDS)] * 20
    assert replicas.replays > 0
    assert not replicas.replicas[0].health.is_up
    assert [replica.open_count for replica in replicas.replicas] == [0, 0]
    for server in servers:
        await server.close()


async def test_the_only_servers_death_is_reported_within_a_second_and_its_return_noticed(
    tritons: list[FakeTriton],
) -> None:
    replicas, (server,) = fleet(tritons[:1])
    pipeline = FleetPipeline(replicas, 8192, FleetSettings())
    reading = asyncio.ensure_future(read(pipeline, 1))
    await asyncio.sleep(0.08)
    await tritons[0].stop()
    with pytest.raises(InflightError) as caught:
        await asyncio.wait_for(reading, 1)
    assert caught.value.kind is ErrorKind.ENGINE_FAILED
    await tritons[0].start()
    until_s = time.monotonic() + 10
    text = ""
    while not text and time.monotonic() < until_s:
        try:
            text = await read(pipeline, 2)
        except InflightError:
            await asyncio.sleep(0.05)
    assert text == "".join(WORDS)
    await server.close()
