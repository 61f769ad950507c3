"""Two pools over real connections: what engines say of themselves decides who is sent which part."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from python_backend.wire.engine_report import EngineReport
from python_backend.wire.tiers import Tier
from router.control.health.engine_reports import EngineReports
from router.core.generation import GenerationCall
from router.core.objective import Objective
from router.routing.divided_generation import DividedGeneration
from router.routing.generation import FleetPipeline
from router.routing.replicas import Fleet, FleetSettings, ReplicaSet
from router.triton.server import TritonServer
from tests.fakes.fleet import MANIFEST
from tests.fakes.triton_server import FakeTriton, Reply, story
from tests.waiting import soon

CALL = GenerationCall(request_id="r1", prompt="word " * 600, max_tokens=20, seed=1)
Script = Callable[[Any], list[Reply]]


def computes(request: Any) -> list[Reply]:
    if request.parameters["request_type"].string_param != "context_only":
        return story("Hello", " world")
    return [Reply(tokens=0, finish="length", final=True, context=b"there")]


def no_objective(model: str, tier: Tier) -> Objective:
    return Objective(model, tier)


@pytest.fixture
async def closing() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def two_pools(closing: AsyncExitStack, *scripts: Script) -> tuple[ReplicaSet, list[FakeTriton]]:
    """The first is for prompts, the others answer."""
    fakes = []
    for number, script in enumerate(scripts):
        pool = "decode" if number else "prefill"
        report = EngineReport(8, 64, 8, 64, 100, 0, 16, 0, 0, False, pool=pool)
        fakes.append(await FakeTriton(script, report=report).start())
        closing.push_async_callback(fakes[-1].stop)
    servers = [TritonServer(f"s{number}", fake.url) for number, fake in enumerate(fakes)]
    for server in servers:
        closing.push_async_callback(server.close)
    fleet = Fleet(servers)
    replicas = fleet.set_of(MANIFEST)
    for replica in replicas.replicas:
        replica.is_loaded = True
    await EngineReports(fleet, no_objective).ask_all()
    return replicas, fakes


def pipeline_of(replicas: ReplicaSet) -> FleetPipeline:
    return FleetPipeline(replicas, 8192, FleetSettings(600.0), divided=DividedGeneration)


def parts(fake: FakeTriton) -> list[str]:
    return [request.parameters["request_type"].string_param or "whole" for request in fake.requests]


async def test_replicas_are_sent_the_part_that_their_engines_are_there_for(closing: AsyncExitStack) -> None:
    replicas, (prefill, decode) = await two_pools(closing, computes, computes)
    assert [replica.pool for replica in replicas.replicas] == ["prefill", "decode"]
    text = "".join([delta.text async for delta in pipeline_of(replicas).generate(CALL)])
    assert text == "Hello world"
    assert (parts(prefill), parts(decode)) == (["context_only"], ["generation_only"])
    assert decode.requests[0].raw_input_contents[-1] == b"there"


async def test_a_server_for_prompts_that_dies_costs_no_answer(closing: AsyncExitStack) -> None:
    waits = asyncio.Event()
    replicas, (prefill, decode) = await two_pools(closing, lambda request: [Reply(after=waits)], computes)
    generation = pipeline_of(replicas).generate(CALL)
    reading = asyncio.ensure_future(anext(generation))
    await prefill.began.wait()
    await prefill.stop()
    assert (await reading).text == "Hello"
    assert parts(decode) == ["whole"]
    assert "".join([delta.text async for delta in generation]) == " world"


@pytest.mark.parametrize("part", ["context_only", "generation_only"])
async def test_a_stop_reaches_whichever_part_is_under_way(closing: AsyncExitStack, part: str) -> None:
    def slow(request: Any) -> list[Reply]:
        replies = computes(request)
        if request.parameters["request_type"].string_param == part:
            replies[-1].pause_s = 3600
        return replies

    replicas, (prefill, decode) = await two_pools(closing, slow, slow)
    generation = pipeline_of(replicas).generate(CALL)
    stopped, under_way = ("r1-p1", prefill) if part == "context_only" else ("r1", decode)

    async def finishes() -> list[str | None]:
        return [delta.finish async for delta in generation]

    reading = asyncio.ensure_future(finishes())
    await under_way.began.wait()
    generation.stop()
    assert (await soon(reading))[-1] == "cancelled"
    assert stopped in under_way.stops
    assert all(replica.is_drained for replica in replicas.replicas)
