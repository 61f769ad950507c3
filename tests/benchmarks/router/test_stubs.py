"""The two stubs send the same tokens, each in its own protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from benchmarks.router import load
from benchmarks.router.openai_stub import OpenAIStub
from benchmarks.router.pacing import Pacer, max_tokens
from benchmarks.router.triton_stub import TritonStub
from benchmarks.router.words import word
from router.core.generation import GenerationCall
from router.triton.client import TritonConnection, TritonPipeline


@asynccontextmanager
async def serving(stub: type[OpenAIStub] | type[TritonStub]) -> AsyncIterator[int]:
    pacer = Pacer()
    server = await asyncio.get_running_loop().create_server(lambda: stub(pacer), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def words(tokens: int) -> list[str]:
    return [word(number + 1) for number in range(tokens)]


async def test_the_triton_stub_answers_the_routers_own_client() -> None:
    async with serving(TritonStub) as port:
        triton = TritonConnection(f"127.0.0.1:{port}")
        pipeline = TritonPipeline(triton, "ensemble", "tensorrt_llm")
        assert await pipeline.ready()
        for tokens, interval_ms in ((1, 0), (5, 0), (5, 2)):
            call = GenerationCall(
                request_id="r", prompt="hi" * 50_000, max_tokens=max_tokens(tokens, interval_ms), seed=1
            )
            deltas = [delta async for delta in pipeline.generate(call)]
            assert [delta.text for delta in deltas] == words(tokens)
            assert deltas[-1].finish == "length"
        await triton.close()


async def test_the_openai_stub_sends_the_same_tokens_whole_and_in_events() -> None:
    async with serving(OpenAIStub) as port:
        target = load.Target(port)
        caller = await load.connect(target)
        await caller.begin(target.request(max_tokens(5), stream=False))
        caller.check(5, stream=False)
        answer = msgspec.json.decode(b"".join(caller.body))
        assert answer["choices"][0]["message"]["content"] == "".join(words(5))
        caller.transport.close()
        streams = await load.streams(target, target.request(max_tokens(5, 2), stream=True), 5, count=3)
        assert len(streams.first_ms) == 3
        whole = await load.whole(target, target.request(max_tokens(1), stream=False), 1, 2, seconds=0.05)
        assert whole.requests > 0
        request = target.request(max_tokens(3, 2), stream=True)
        assert await asyncio.to_thread(load.first_token_ms, target, request, 2) > 0
        assert await asyncio.to_thread(load.ask_once, target) == ""


async def test_open_streams_are_read_to_their_end() -> None:
    async with serving(OpenAIStub) as port:
        target = load.Target(port)
        streams = load.OpenStreams(target)
        await streams.open(target.request(max_tokens(4, 20), stream=True), 5)
        await streams.close(4)
