from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.generation import Delta, GenerationCall
from router.triton.client import TritonConnection, TritonPipeline
from tests.fakes.triton_server import FakeTriton, Reply, story
from tests.waiting import soon, until

CALL = GenerationCall(request_id="chatcmpl-1", prompt="hi", max_tokens=3, seed=1)


@pytest.fixture
async def triton() -> AsyncIterator[FakeTriton]:
    fake = await FakeTriton().start()
    yield fake
    await fake.stop()


@pytest.fixture
async def connection(triton: FakeTriton) -> AsyncIterator[TritonConnection]:
    made = TritonConnection(triton.url, stop_timeout_s=60.0)
    yield made
    await made.close()


@pytest.fixture
def pipeline(connection: TritonConnection) -> TritonPipeline:
    return TritonPipeline(connection, "ensemble", "tensorrt_llm")


async def collect(pipeline: TritonPipeline) -> list[Delta]:
    return [delta async for delta in pipeline.generate(CALL)]


async def test_deltas_come_in_order_with_their_tokens(triton: FakeTriton, pipeline: TritonPipeline) -> None:
    assert await collect(pipeline) == [Delta("Hello", 1, 5), Delta(" world", 1, 5, "end_id")]
    assert triton.requests[0].id == "chatcmpl-1"
    assert triton.running == {}


async def test_an_empty_final_response_after_the_end_is_skipped(
    triton: FakeTriton, pipeline: TritonPipeline
) -> None:
    triton.script = lambda request: [Reply("a", finish="length"), Reply(tokens=0, final=True)]
    assert await collect(pipeline) == [Delta("a", 1, 5, "length")]


@pytest.mark.parametrize(("tokens", "finish"), [(2, "end_id"), (3, "length")])
async def test_a_finish_reason_missing_from_the_engine_is_inferred_from_the_tokens(
    triton: FakeTriton, pipeline: TritonPipeline, tokens: int, finish: str
) -> None:
    triton.script = lambda request: [Reply("a", tokens=tokens), Reply(tokens=0, final=True)]
    assert (await collect(pipeline))[-1].finish == finish


async def test_a_stream_that_ends_early_is_a_failure(triton: FakeTriton, pipeline: TritonPipeline) -> None:
    triton.script = lambda request: [Reply("a")]
    with pytest.raises(InflightError) as caught:
        await collect(pipeline)
    assert caught.value.kind is ErrorKind.ENGINE_FAILED


async def test_an_engines_complaint_about_a_request_reaches_the_caller(
    triton: FakeTriton, pipeline: TritonPipeline
) -> None:
    text = "in ensemble 'ensemble', context_length_exceeded: 9000 tokens do not fit 8192"
    triton.script = lambda request: [Reply(error=text)]
    with pytest.raises(InflightError, match=r"^9000 tokens do not fit 8192$") as caught:
        await collect(pipeline)
    assert caught.value.kind is ErrorKind.CONTEXT_LENGTH_EXCEEDED


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Stub process 'eng_0_0' is not healthy", ErrorKind.OVERLOADED),
        ("Request for unknown model: 'ensemble' is not found", ErrorKind.ENGINE_FAILED),
        ("engine_failed: step 5 broke in /some/path", ErrorKind.ENGINE_FAILED),
        ("something odd at 0x7f00", ErrorKind.INTERNAL),
    ],
)
async def test_an_error_that_is_not_the_callers_fault_is_shown_without_internals(
    triton: FakeTriton,
    pipeline: TritonPipeline,
    caplog: pytest.LogCaptureFixture,
    text: str,
    kind: ErrorKind,
) -> None:
    triton.script = lambda request: [Reply(error=text)]
    with pytest.raises(InflightError, match=r"^the model cannot answer at the moment$") as caught:
        await collect(pipeline)
    assert caught.value.kind is kind
    assert text in caplog.text


async def test_an_unreachable_triton_is_unavailable() -> None:
    connection = TritonConnection("127.0.0.1:1")
    pipeline = TritonPipeline(connection, "ensemble", "tensorrt_llm")
    assert not await pipeline.ready()
    with pytest.raises(InflightError) as caught:
        await collect(pipeline)
    assert caught.value.kind is ErrorKind.ENGINE_FAILED
    await connection.close()


async def test_a_triton_that_dies_in_mid_stream_ends_the_request(
    triton: FakeTriton, pipeline: TritonPipeline
) -> None:
    triton.script = lambda request: [Reply("a"), Reply("b", pause_s=3600)]
    generation = pipeline.generate(CALL)
    assert (await generation.__anext__()).text == "a"
    await triton.stop()
    with pytest.raises(InflightError) as caught:
        await generation.__anext__()
    assert caught.value.kind is ErrorKind.ENGINE_FAILED
    generation.stop()
    assert triton.stops == []


async def test_a_pipelines_readiness_is_tritons_own(triton: FakeTriton, pipeline: TritonPipeline) -> None:
    assert await pipeline.ready()
    triton.ready = False
    assert not await pipeline.ready()


async def test_a_stop_reaches_the_engine_and_the_stream_ends_by_itself(
    triton: FakeTriton, pipeline: TritonPipeline
) -> None:
    triton.script = lambda request: [Reply("a"), *[Reply("b", pause_s=0.05)] * 400]
    generation = pipeline.generate(CALL)
    await generation.__anext__()
    generation.stop()
    generation.stop()
    rest = [delta async for delta in generation]
    assert rest[-1].finish == "cancelled"
    assert len(rest) < 400
    assert set(triton.stops) == {"chatcmpl-1"}
    assert triton.running == {}


async def test_a_stop_that_is_lost_is_sent_again(triton: FakeTriton, pipeline: TritonPipeline) -> None:
    triton.deaf_to_stops = 2
    triton.script = lambda request: [Reply("a"), *[Reply("b", pause_s=0.05)] * 400]
    generation = pipeline.generate(CALL)
    await generation.__anext__()
    generation.stop()
    assert [delta async for delta in generation][-1].finish == "cancelled"
    assert len(triton.stops) >= 3


async def test_a_stop_before_the_start_never_reaches_triton(
    triton: FakeTriton, pipeline: TritonPipeline
) -> None:
    generation = pipeline.generate(CALL)
    generation.stop()
    assert [delta async for delta in generation] == [Delta("", finish="cancelled")]
    assert triton.requests == triton.stops == []


async def test_an_engine_that_ignores_stops_is_given_up(
    triton: FakeTriton,
    connection: TritonConnection,
    pipeline: TritonPipeline,
    caplog: pytest.LogCaptureFixture,
) -> None:
    connection.stop_timeout_s = 0.5
    triton.deaf_to_stops = 1000
    triton.script = lambda request: [Reply("a"), Reply("b", pause_s=3600)]
    generation = pipeline.generate(CALL)
    await generation.__anext__()
    generation.stop()
    with pytest.raises(InflightError) as caught:
        await soon(generation.__anext__())
    assert caught.value.kind is ErrorKind.CANCELLED
    assert [delta async for delta in generation] == []
    assert "did not stop within 0.5 s" in caplog.text


async def test_a_stream_left_open_after_the_answer_is_given_up(
    triton: FakeTriton, connection: TritonConnection, pipeline: TritonPipeline
) -> None:
    connection.stop_timeout_s = 0.5
    triton.script = lambda request: [*story("a"), Reply("never", pause_s=3600)]
    deltas = await soon(collect(pipeline))
    assert [delta.text for delta in deltas] == ["a"]


async def test_cancelling_the_reader_is_propagated(triton: FakeTriton, pipeline: TritonPipeline) -> None:
    triton.script = lambda request: [Reply("a", pause_s=3600)]
    reading = asyncio.ensure_future(collect(pipeline))
    await soon(triton.began.wait())
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_a_stop_after_the_reader_was_cancelled_still_reaches_the_engine(
    triton: FakeTriton, pipeline: TritonPipeline
) -> None:
    triton.script = lambda request: [Reply("a", pause_s=3600)]
    generation = pipeline.generate(CALL)
    reading = asyncio.ensure_future(generation.__anext__())
    await soon(triton.began.wait())
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    generation.stop()
    await until(lambda: not triton.running)
    assert set(triton.stops) == {"chatcmpl-1"}
    assert [delta async for delta in generation] == []


async def test_no_client_data_reaches_the_grpc_metadata(triton: FakeTriton, pipeline: TritonPipeline) -> None:
    await collect(pipeline)
    assert set(triton.metadata[0]) <= {"user-agent"}
