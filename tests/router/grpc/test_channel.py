"""The client against grpcio's own server."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from router.grpc import frames
from router.grpc.channel import Channel, next_pause_s
from router.grpc.status import GrpcError, StatusCode
from router.triton.client import InferStream, TritonConnection
from tests.pace import patience
from tests.router.grpc.real_server import RealServer, order
from tests.waiting import until


@pytest.fixture
async def server() -> AsyncIterator[RealServer]:
    started = await RealServer().start()
    yield started
    await started.stop()


@pytest.fixture
async def triton(server: RealServer) -> AsyncIterator[TritonConnection]:
    connection = TritonConnection(server.url)
    yield connection
    await connection.close()


async def names(stream: InferStream) -> list[str]:
    return [message.infer_response.id async for message in stream]


async def failure(act: Callable[[], Awaitable[Any]]) -> GrpcError:
    with pytest.raises(GrpcError) as caught:
        await act()
    return caught.value


async def test_many_concurrent_streams_each_get_their_own_messages(
    server: RealServer, triton: TritonConnection
) -> None:
    streams = [triton.infer(order(str(number), count=20, pause_s=0.001)) for number in range(100)]
    told = await asyncio.gather(*map(names, streams))
    assert told == [[f"{number}-{index}" for index in range(20)] for number in range(100)]
    assert len(server.peers) == 1


async def test_an_empty_stream_ends_cleanly(triton: TritonConnection) -> None:
    assert await names(triton.infer(order(count=0))) == []


async def test_unary_calls_have_single_answers(triton: TritonConnection) -> None:
    answer = await triton.call("ServerLive", service_pb2.ServerLiveRequest(), service_pb2.ServerLiveResponse)
    assert answer.live
    payload = bytes(range(256)) * 20
    answer = await triton.infer_once(order(payload=payload), timeout_s=600)
    assert answer.raw_output_contents == [payload]


async def test_prompts_and_answers_of_megabytes_go_both_ways(triton: TritonConnection) -> None:
    payloads = [bytes([number]) * (3 << 20) for number in range(4)]
    answers = await asyncio.gather(*(triton.infer_once(order(payload=payload)) for payload in payloads))
    assert [answer.raw_output_contents[0] for answer in answers] == payloads
    sizes = [
        len(message.infer_response.raw_output_contents[0])
        async for message in triton.infer(order(count=5, size=1 << 20))
    ]
    assert sizes == [1 << 20] * 5


async def test_an_error_has_its_code_and_its_text(triton: TritonConnection) -> None:
    details = 'a "möglicher" 100 % Fehler\nin zwei Zeilen'
    error = await failure(lambda: names(triton.infer(order(count=0, code=9, details=details))))
    assert (error.code, error.details) == (StatusCode.FAILED_PRECONDITION, details)


async def test_messages_before_an_error_are_read_first(triton: TritonConnection) -> None:
    stream = triton.infer(order(count=2, code=5, details="gone"))
    await until(lambda: stream.call.ended)
    assert (await stream.read()).infer_response.id == "r-0"
    assert (await stream.read()).infer_response.id == "r-1"
    assert (await failure(stream.read)).code is StatusCode.NOT_FOUND
    assert (await failure(stream.read)).code is StatusCode.NOT_FOUND


async def test_an_unknown_method_is_unimplemented(triton: TritonConnection) -> None:
    request = service_pb2.ServerLiveRequest()
    error = await failure(lambda: triton.call("Nothing", request, service_pb2.ServerLiveResponse))
    assert error.code is StatusCode.UNIMPLEMENTED


async def test_a_unary_call_refuses_an_answer_of_two_messages(server: RealServer) -> None:
    channel = Channel(server.url)
    request = order(count=2).SerializeToString()
    path = "/inference.GRPCInferenceService/ModelStreamInfer"
    assert (await failure(lambda: channel.call_once(path, request))).code is StatusCode.INTERNAL
    await channel.close()


async def test_an_answer_over_the_limit_is_refused(server: RealServer) -> None:
    channel = Channel(server.url, max_message_bytes=1000)
    call = channel.call(
        "/inference.GRPCInferenceService/ModelStreamInfer", order(size=2000).SerializeToString()
    )
    assert (await failure(call.read)).code is StatusCode.RESOURCE_EXHAUSTED
    await channel.close()


async def test_a_cancel_reaches_the_server(server: RealServer, triton: TritonConnection) -> None:
    stream = triton.infer(order(count=100_000, pause_s=0.01))
    await stream.read()
    stream.cancel()
    assert (await failure(stream.read)).code is StatusCode.CANCELLED
    await until(lambda: server.cancelled == 1)
    assert await names(triton.infer(order())) == ["r-0"]


async def test_a_unary_call_whose_caller_is_cancelled_is_cancelled(
    server: RealServer, triton: TritonConnection
) -> None:
    request = order(count=100_000, pause_s=0.01)
    calling = asyncio.ensure_future(
        triton.call("ModelStreamInfer", request, service_pb2.ModelStreamInferResponse)
    )
    await until(lambda: server.open_streams == 1)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    await until(lambda: server.cancelled == 1)


async def test_a_deadline_ends_the_call_on_both_sides(server: RealServer, triton: TritonConnection) -> None:
    # Long enough for a busy machine to have begun with it.
    stream = triton.infer(order(count=100_000, pause_s=0.02), timeout_s=patience(3.0))
    assert (await failure(lambda: names(stream))).code is StatusCode.DEADLINE_EXCEEDED
    await until(lambda: server.cancelled == 1)


async def test_a_reader_that_stops_reading_is_not_sent_more_than_its_window(
    server: RealServer, triton: TritonConnection
) -> None:
    slow = triton.infer(order(count=100, size=10_000))
    await slow.read()
    assert len(await names(triton.infer(order(count=100, size=10_000)))) == 100
    await asyncio.sleep(0.1)
    assert server.open_streams == 1
    assert slow.call._unread_bytes <= 128 << 10
    assert len(await names(slow)) == 99


async def test_a_server_that_stops_gently_finishes_its_streams(
    server: RealServer, triton: TritonConnection
) -> None:
    stream = triton.infer(order(count=20, pause_s=0.02))
    await stream.read()
    stopping = asyncio.ensure_future(server.stop(grace_s=patience(30)))

    async def is_refused() -> bool:
        try:
            await names(triton.infer(order()))
        except GrpcError as error:
            return error.code is StatusCode.UNAVAILABLE
        return False

    await until(is_refused)
    assert len(await names(stream)) == 19
    await stopping


async def test_a_server_that_stops_at_once_ends_its_streams(
    server: RealServer, triton: TritonConnection
) -> None:
    streams = [triton.infer(order(count=100_000, pause_s=0.02)) for _ in range(20)]
    await asyncio.gather(*(stream.read() for stream in streams))
    await server.stop()
    errors = await asyncio.gather(*(names(stream) for stream in streams), return_exceptions=True)
    assert all(isinstance(error, GrpcError) for error in errors)


async def test_a_server_that_comes_back_is_found_again(server: RealServer, triton: TritonConnection) -> None:
    assert await names(triton.infer(order())) == ["r-0"]
    await server.stop()
    await until_called(triton, False)
    again = await RealServer(port=server.port).start()
    await until_called(triton, True)
    await again.stop()


async def until_called(triton: TritonConnection, works: bool) -> None:
    async def ask() -> bool:
        try:
            return works is (await names(triton.infer(order())) == ["r-0"])
        except GrpcError as error:
            return works is (error.code is not StatusCode.UNAVAILABLE)

    await until(ask)


async def test_streams_beyond_a_connections_limit_open_another_connection() -> None:
    server = await RealServer(options=[("grpc.max_concurrent_streams", 3)]).start()
    triton = TritonConnection(server.url)
    streams = [triton.infer(order(str(number), count=5, pause_s=0.02)) for number in range(10)]
    told = await asyncio.gather(*map(names, streams))
    assert [len(messages) for messages in told] == [5] * 10
    assert len(server.peers) >= 3
    await triton.close()
    await server.stop()


# Servers that die


@asynccontextmanager
async def another_process(port: int = 0) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.router.grpc.real_server", str(port), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield process, f"127.0.0.1:{int(await process.stdout.readline())}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_a_killed_server_ends_every_stream_once_and_a_frozen_one_by_its_deadline() -> None:
    async with another_process() as (process, url):
        triton = TritonConnection(url)
        request, ends = order(count=1_000_000, pause_s=0.001).SerializeToString(), list[int]()
        calls = [triton.infer_bytes(request, on_end=partial(ends.append, number)) for number in range(50)]
        streams = [InferStream(call) for call in calls]
        for stream in streams:
            await stream.read()
        process.send_signal(signal.SIGSTOP)
        frozen = triton.infer(order(), timeout_s=0.2)
        assert (await failure(frozen.read)).code is StatusCode.DEADLINE_EXCEEDED
        process.kill()
        errors = await asyncio.gather(*(names(stream) for stream in streams), return_exceptions=True)
        assert {getattr(error, "code", None) for error in errors} == {StatusCode.UNAVAILABLE}
        assert sorted(ends) == list(range(50))
        await triton.close()


async def test_a_port_without_a_listener_fails_at_once_and_again_after_a_pause() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"127.0.0.1:{probe.getsockname()[1]}"
        triton = TritonConnection(url)
        for _ in range(3):
            error = await failure(lambda: names(triton.infer(order())))
            assert error.code is StatusCode.UNAVAILABLE
            assert url in error.details
    await triton.close()


async def test_a_server_that_accepts_and_never_answers_is_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("router.grpc.channel._CONNECT_TIMEOUT_S", 0.1)
    silent = await asyncio.start_server(_say(b""), "127.0.0.1", 0)
    triton = TritonConnection(f"127.0.0.1:{silent.sockets[0].getsockname()[1]}")
    stream = triton.infer(order())
    assert (await failure(stream.read)).code is StatusCode.UNAVAILABLE
    await triton.close()
    silent.close()


@pytest.mark.parametrize(
    "first_words", [b"HTTP/1.1 400 Bad Request\r\n\r\n" * 700, b"", b"\0\0\x08\x07" + bytes(13)]
)
async def test_a_server_that_does_not_speak_grpc_is_unavailable(first_words: bytes) -> None:
    server = await asyncio.start_server(_say(first_words, close=True), "127.0.0.1", 0)
    triton = TritonConnection(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    stream = triton.infer(order())
    assert (await failure(stream.read)).code is StatusCode.UNAVAILABLE
    await triton.close()
    server.close()


def _say(
    words: bytes, close: bool = False
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(words)
        if close:
            writer.close()
        else:
            await reader.read()
            writer.close()

    return act


async def test_a_call_refused_three_times_is_unavailable() -> None:
    refusals = 0

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal refusals
        writer.write(frames.settings({}))
        await reader.readexactly(len(frames.PREFACE))
        while head := await reader.read(frames.HEAD_BYTES):
            high, low, kind, _, stream_id = frames.HEAD.unpack(head)
            await reader.readexactly(high << 8 | low)
            if kind == frames.DATA:
                refusals += 1
                writer.write(frames.reset(stream_id, frames.ErrorCode.REFUSED_STREAM))
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    triton = TritonConnection(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert (await failure(triton.infer(order()).read)).code is StatusCode.UNAVAILABLE
    assert refusals == 3
    await triton.close()
    server.close()


async def test_closing_a_channel_ends_running_and_later_calls(server: RealServer) -> None:
    triton = TritonConnection(server.url)
    running = triton.infer(order(count=100_000, pause_s=0.02))
    await running.read()
    await triton.close()
    assert (await failure(running.read)).code is StatusCode.CANCELLED
    assert (await failure(triton.infer(order()).read)).code is StatusCode.CANCELLED
    await until(lambda: server.cancelled == 1)


@given(st.floats(0, 10))
def test_reconnects_pause_between_a_tenth_of_a_second_and_a_second(pause_s: float) -> None:
    assert 0.1 <= next_pause_s(pause_s) <= 1.0
    assert next_pause_s(pause_s) >= min(pause_s, 1.0)
