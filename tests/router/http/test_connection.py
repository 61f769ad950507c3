from __future__ import annotations

import asyncio
import gc
import json
import socket
import time
import weakref
from collections.abc import AsyncIterator

import pytest

from router.core.generation import Delta
from router.http.connection import Limits
from router.http.exchange import Exchange
from router.http.listener import Listener
from tests.fakes.pipeline import words
from tests.pace import patience
from tests.router.raw import RawClient, chat_request, post
from tests.router.running import RunningRouter, running_router
from tests.waiting import soon, until

LIVE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
async def client(router: RunningRouter) -> AsyncIterator[RawClient]:
    connected = await RawClient.connect(router.port)
    yield connected
    await connected.close()


async def test_a_connection_serves_many_requests(client: RawClient) -> None:
    for _ in range(3):
        await client.send(LIVE)
        assert (await client.reply()).status == 200


async def test_pipelined_requests_are_answered_in_order(client: RawClient) -> None:
    await client.send(LIVE + b"GET /nope HTTP/1.1\r\nHost: localhost\r\n\r\n" + LIVE)
    assert [(await client.reply()).status for _ in range(3)] == [200, 404, 200]


async def test_a_flood_of_pipelined_requests_is_answered_completely(client: RawClient) -> None:
    await client.send(LIVE * 500)
    assert {(await client.reply()).status for _ in range(500)} == {200}


async def test_a_request_may_arrive_byte_by_byte(client: RawClient) -> None:
    for byte in chat_request():
        await client.send(bytes([byte]))
    assert (await client.reply()).status == 200


async def test_a_chunked_body_is_read(client: RawClient) -> None:
    body = chat_request().partition(b"\r\n\r\n")[2]
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    chunked = b"%x\r\n%b\r\n0\r\nTrailer: ignored\r\n\r\n" % (len(body), body)
    await client.send(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked)
    assert (await client.reply()).status == 200


async def test_connection_close_is_honoured(client: RawClient) -> None:
    await client.send(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    reply = await client.reply()
    assert reply.headers["connection"] == "close"
    assert await client.closed()


async def test_an_http_1_0_client_gets_a_stream_without_chunking(client: RawClient) -> None:
    await client.send(chat_request(stream=True).replace(b"HTTP/1.1", b"HTTP/1.0"))
    answer = await soon(client.reader.read())
    assert b"transfer-encoding" not in answer
    assert answer.endswith(b"data: [DONE]\n\n")


async def test_head_gets_the_headers_alone(client: RawClient) -> None:
    await client.send(b"HEAD /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n" + LIVE)
    assert b"content-length: 17\r\n" in await client.read_until(b"\r\n\r\n")
    assert (await client.reply()).body == b'{"status":"live"}'


async def test_expect_continue_is_answered_before_the_body(client: RawClient) -> None:
    head, _, body = post(
        "/v1/completions", {"model": "tiny", "prompt": "x"}, "Expect: 100-continue"
    ).partition(b"\r\n\r\n")
    await client.send(head + b"\r\n\r\n")
    assert await client.read_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    await client.send(body)
    assert (await client.reply()).status == 200


async def test_expect_continue_stays_out_of_the_answer_to_the_request_before(
    router: RunningRouter, client: RawClient
) -> None:
    router.pipeline.script = lambda call: [0.1, *words("one", " two")]
    second = post("/v1/completions", {"model": "tiny", "prompt": "x"}, "Expect: 100-continue")
    await client.send(chat_request(stream=True) + second)
    assert b"100 Continue" not in await client.read_until(b"0\r\n\r\n")
    assert (await client.reply()).status == 200


async def test_an_unreadable_request_has_an_id_and_is_counted_and_logged(
    router: RunningRouter, client: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await client.send(b"nonsense\r\n\r\n")
    request_id = (await client.reply()).headers["x-request-id"]
    assert f"{request_id} unknown status=400" in caplog.text
    labels = {"route": "unknown", "status": "400", "model": "", "tenant": "nobody"}
    assert router.metric("inflight_requests_total", **labels) == 1


async def test_a_client_that_offers_http_2_is_answered_in_http_1(client: RawClient) -> None:
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
    request = post("/v1/completions", {"model": "tiny", "prompt": "x"}, *offer)
    await client.send(request[:-5])
    await client.send(request[-5:])
    assert (await client.reply()).status == 200
    await client.send(LIVE)
    assert (await client.reply()).status == 200


async def test_any_number_of_http_2_upgrade_offers_is_answered(client: RawClient) -> None:
    offer = LIVE.replace(b"\r\n\r\n", b"\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
    await client.send(offer * 1500)
    assert {(await client.reply()).status for _ in range(1500)} == {200}


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: +2\r\n\r\n{}",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999999\r\n\r\n{}",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\nab\n0\n\n",
        b"GET / HTTP/1.1\nHost: localhost\n\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nA: b\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nA : b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent_Length: 3\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nA: b\x00\r\n\r\n",
        b"GET http://other/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"CONNECT other:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"CONNECT / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /a\x00b HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
    ],
)
async def test_ambiguous_or_broken_requests_are_refused_and_the_connection_closed(
    router: RunningRouter, client: RawClient, request_bytes: bytes
) -> None:
    await client.send(request_bytes)
    reply = await client.reply()
    assert reply.status == 400
    assert reply.headers["connection"] == "close"
    assert json.loads(reply.body)["error"]["type"] == "invalid_request_error"
    await client.send(LIVE)
    assert await client.closed()
    assert router.pipeline.calls == []


async def test_nonsense_behind_a_request_that_is_being_answered_ends_the_connection(
    router: RunningRouter, client: RawClient
) -> None:
    await client.send(chat_request(stream=True) + b"\x00\x01\x02")
    assert await client.closed()
    another = await RawClient.connect(router.port)
    await another.send(LIVE)
    assert (await another.reply()).status == 200
    await another.close()


async def test_an_unknown_http_version_is_refused(client: RawClient) -> None:
    await client.send(b"GET / HTTP/0.9\r\n\r\n")
    assert (await client.reply()).status == 505


async def test_headers_without_end_are_refused(client: RawClient) -> None:
    await client.send(b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"x" * 40_000)
    assert (await client.reply()).status == 431


@pytest.mark.parametrize("before", [b"", LIVE])
async def test_blank_lines_without_end_are_refused_before_and_between_requests(
    client: RawClient, before: bytes
) -> None:
    if before:
        await client.send(before)
        assert (await client.reply()).status == 200
    await client.send(b"\r\n" * 20_000)
    assert (await client.reply()).status == 431


async def test_a_declared_body_beyond_the_limit_is_refused_before_it_is_sent(client: RawClient) -> None:
    await client.send(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048577\r\n\r\n")
    assert (await client.reply()).status == 413


async def test_a_client_that_sends_a_huge_body_anyway_still_reads_the_refusal(router: RunningRouter) -> None:
    body = b"x" * (8 << 20)
    response = await router.http.post("/v1/completions", content=body)
    assert response.status_code == 413
    assert response.json()["error"]["message"] == "the request body is larger than 1048576 bytes"


async def test_a_chunked_body_beyond_the_limit_is_refused(client: RawClient) -> None:
    await client.send(
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    await client.send((b"80000\r\n" + b"x" * 0x80000 + b"\r\n") * 3)
    assert (await client.reply()).status == 413


async def test_a_million_tiny_chunks_are_refused(client: RawClient) -> None:
    await client.send(
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    await client.send(b"1\r\nx\r\n" * 500_000)
    assert (await client.reply()).status == 413


async def test_refused_bodies_and_closed_connections_leave_nothing_in_memory(
    router: RunningRouter,
) -> None:
    """Not even until the garbage collector comes, which is seldom."""
    client = await RawClient.connect(router.port)
    gc.collect()
    gc.disable()
    try:
        await client.send(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        await client.send(b"1\r\n{\r\n" * 1_000_000)
        assert (await client.reply()).status == 413
        (connection,) = router.listener._connections
        assert not connection._body
        gone = weakref.ref(connection)
        del connection
        await client.close()
        await router.until(lambda: gone() is None)
    finally:
        gc.enable()
        await client.close()


async def test_endless_trailers_are_refused(client: RawClient) -> None:
    await client.send(
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    )
    await client.send(b"A: b\r\n" * 400_000)
    assert (await client.reply()).status == 413


IMPATIENT = Limits(
    header_timeout_s=patience(0.2),
    body_timeout_s=patience(0.4),
    idle_timeout_s=patience(0.6),
    write_stall_timeout_s=patience(0.3),
    linger_s=0.1,
    write_buffer_bytes=1 << 14,
)


@pytest.fixture
async def impatient() -> AsyncIterator[RunningRouter]:
    async with running_router(IMPATIENT) as running:
        yield running


@pytest.mark.parametrize(
    ("sent", "limit_s"),
    [
        (b"GET / HTTP/1.1\r\nHost:", IMPATIENT.header_timeout_s),
        (
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
            IMPATIENT.body_timeout_s,
        ),
    ],
    ids=["in its head", "in its body"],
)
async def test_a_request_that_trickles_in_times_out(
    impatient: RunningRouter, sent: bytes, limit_s: float
) -> None:
    client = await RawClient.connect(impatient.port)
    await client.send(sent)
    began_s = time.monotonic()
    assert (await client.reply()).status == 408
    assert time.monotonic() - began_s >= limit_s * 0.9
    assert await client.closed()
    await client.close()


async def test_connections_without_a_request_are_closed_silently(impatient: RunningRouter) -> None:
    client = await RawClient.connect(impatient.port)
    assert await client.closed()
    await client.close()


async def test_idle_connections_are_closed_after_their_own_longer_timeout(impatient: RunningRouter) -> None:
    client = await RawClient.connect(impatient.port)
    await client.send(LIVE)
    await client.reply()
    began_s = time.monotonic()
    assert await client.closed()
    assert time.monotonic() - began_s >= IMPATIENT.idle_timeout_s * 0.8
    await client.close()


async def test_a_slow_answer_is_not_a_timeout(impatient: RunningRouter) -> None:
    impatient.pipeline.script = lambda call: [patience(1.0), *words("late")]
    assert (await impatient.chat()).json()["choices"][0]["message"]["content"] == "late"


async def test_a_client_that_stops_reading_holds_back_its_stream_and_is_then_dropped(
    impatient: RunningRouter,
) -> None:
    impatient.pipeline.script = lambda call: [Delta("x" * 10_000, 1, 1)] * 5_000
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(("127.0.0.1", impatient.port))
        reader.sendall(chat_request(stream=True))
        await impatient.until(lambda: len(impatient.pipeline.generations) == 1)
        await impatient.until(lambda: impatient.permits.open_count == 0)
    generation = impatient.pipeline.generations[0]
    assert generation.stopped
    assert generation.delivered * 10_000 < 1 << 20


async def test_chunks_are_not_held_back_by_the_socket(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: [Delta("a", 1, 1), 0.002, Delta("b", 1, 1), *words()]

    async def gap_s() -> float:
        client = await RawClient.connect(router.port)
        await client.send(chat_request(stream=True))
        await client.read_until(b'"content":"a"')
        began_s = time.monotonic()
        await client.read_until(b'"content":"b"')
        gap_s = time.monotonic() - began_s
        await client.close()
        return gap_s

    async def are_quick() -> bool:
        """Nagle's algorithm with delayed acknowledgement waits 0.04 s; a busy machine does, now and then."""
        gaps_s = [await gap_s() for _ in range(15)]
        return sorted(gaps_s)[len(gaps_s) // 4] < 0.02

    await until(are_quick)


async def test_a_handler_that_fails_still_answers(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(exchange: Exchange) -> None:
        if exchange.request.path == "/late":
            exchange.start(200, [])
            await exchange.send(b"some")
        raise ValueError("no")

    listener = Listener(broken, lambda status, message, path, headers: ((), b"{}"))
    port = await listener.start("127.0.0.1", 0)
    client = await RawClient.connect(port)
    await client.send(LIVE)
    assert (await client.reply()).status == 500
    assert await client.closed()
    late = await RawClient.connect(port)
    await late.send(b"GET /late HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await late.read_until(b"0\r\n\r\n")).endswith(b"4\r\nsome\r\n0\r\n\r\n")
    for each in (client, late):
        await each.close()
    await listener.close()
    assert "the handler of a GET failed" in caplog.text


async def test_pieces_sent_without_a_pause_wait_for_a_client_that_does_not_read() -> None:
    sent_bytes, most_bytes = 0, 64 << 20

    async def endless(exchange: Exchange) -> None:
        nonlocal sent_bytes
        exchange.start(200, [])
        while sent_bytes < most_bytes and not exchange.gone:
            await exchange.send(bytes(1000))
            sent_bytes += 1000

    listener = Listener(endless, lambda status, message, path, headers: ((), b"{}"))
    client = await RawClient.connect(await listener.start("127.0.0.1", 0))
    await client.send(LIVE)
    await client.read_until(b"\r\n\r\n")
    await until(lambda: sent_bytes > 0)
    await asyncio.sleep(0.3)
    assert sent_bytes < most_bytes
    await client.close()
    await listener.close()


async def test_closing_lets_running_answers_end_and_closes_idle_connections(router: RunningRouter) -> None:
    go_on = asyncio.Event()
    router.pipeline.script = lambda call: [go_on, *words("done")]
    idle, busy = await RawClient.connect(router.port), await RawClient.connect(router.port)
    await idle.send(LIVE)
    await idle.reply()
    await busy.send(chat_request())
    await router.until(lambda: len(router.pipeline.calls) == 1)
    closing = asyncio.ensure_future(router.listener.close())
    assert await idle.closed()
    go_on.set()
    reply = await busy.reply()
    assert reply.status == 200
    assert reply.headers["connection"] == "close"
    await closing
    assert router.listener.connection_count == 0
    for each in (idle, busy):
        await each.close()
