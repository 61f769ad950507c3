"""Clients that are slow, idle or gone: T05, T06, T07 and T09."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx
import pytest

from tests.pace import patience
from tests.survival.conftest import Fortress, cpu_of
from tests.waiting import until

HEADER_S, BODY_S, STALL_S = 10.0, 30.0, 30.0
SLACK_S = 3.0
IDLE = 2000
STALLED = 8
# 2 KB a token, of which a stream here has a thousand a second until it is ended.
TRITON_BYTES = 40 << 20
ALLOCATOR_BYTES = 4 << 20  # kept by it after the first requests of a kind; more of it on Arm


def head(quick: Fortress, path: str, length: int) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {quick.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    ).encode()


def completion(quick: Fortress, tokens: int) -> bytes:
    return json.dumps(quick.completion(tokens, stream=True)).encode()


async def lasted_s(quick: Fortress, opening: bytes, limit_s: float) -> float:
    """How long the server bears a client that sends one byte a second after these."""
    reader, writer = await asyncio.open_connection("127.0.0.1", quick.port)
    began_s = time.monotonic()
    writer.write(opening)
    try:
        while time.monotonic() < began_s + limit_s:
            try:
                await asyncio.wait_for(reader.read(1), 1.0)
                break
            except asyncio.TimeoutError:
                writer.write(b" ")
    except ConnectionError:
        pass
    finally:
        writer.transport.abort()
    return time.monotonic() - began_s


async def first_token_s(quick: Fortress, http: httpx.AsyncClient) -> float:
    began_s = time.monotonic()
    async with http.stream("POST", "/v1/completions", json=quick.completion(2, stream=True)) as response:
        assert response.status_code == 200
        async for _ in response.aiter_lines():
            return time.monotonic() - began_s
    raise AssertionError("there was no token")


@dataclass
class Seen:
    """While slow clients of three kinds held on, all at the same time."""

    headers_s: list[float] = field(default_factory=list)
    bodies_s: list[float] = field(default_factory=list)
    stalled_s: float = 0.0
    ended_early: list[bool] = field(default_factory=list)  # where bodies and stalled clients were not awaited
    served: int = 0
    router_growth: int = 0
    triton_growth: int = 0
    idle_cpu_share: float = 0.0


async def stall_s(quick: Fortress, count: int) -> float:
    """Asks for long answers and reads none of them; how long the server bears that.

    What it has sent stands before its goodbye, so a client that does not read cannot tell.
    """
    began_s = time.monotonic()
    body = completion(quick, 1_000_000)
    writers = []
    for _ in range(count):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", quick.port))
        reader, writer = await asyncio.open_connection(sock=client, limit=1024)
        writer.write(head(quick, "/v1/completions", len(body)) + body)
        reader._transport.pause_reading()  # type: ignore[attr-defined]  # there is no public way
        writers.append(writer)

    async def are_over() -> bool:
        return await quick.in_flight() <= 1  # the others' request

    async def have_begun() -> bool:
        return await quick.in_flight() >= count

    try:
        await until(have_begun, "stalled clients are not served")
        await until(are_over, "stalled clients are never ended", STALL_S + 3 * SLACK_S)
    finally:
        for writer in writers:
            writer.transport.abort()
    return time.monotonic() - began_s


async def watch(quick: Fortress, slow: int, stalled: int, *, to_the_end: bool) -> Seen:
    """Until all were ended; or else until headers were, which is soonest."""
    seen = Seen()
    router, triton = quick.router, quick.process("tritonserver")
    slow_head = b"POST /v1/completions HTTP/1.1\r\nx-slow: "
    slow_body = head(quick, "/v1/completions", 500) + b"{"
    headers = [asyncio.ensure_future(lasted_s(quick, slow_head, 2 * HEADER_S)) for _ in range(slow)]
    bodies = [asyncio.ensure_future(lasted_s(quick, slow_body, 2 * BODY_S)) for _ in range(slow)]
    async with quick.client() as http:
        await first_token_s(quick, http)
        cpu_s, began_s = cpu_of(router), time.monotonic()
        await asyncio.sleep(3)
        seen.idle_cpu_share = (cpu_of(router) - cpu_s) / (time.monotonic() - began_s)
        before, triton_before = router.memory_info().rss, triton.memory_info().rss
        stalling = asyncio.ensure_future(stall_s(quick, stalled))
        others = [*bodies, stalling]
        while not all(each.done() for each in (*headers, *(others if to_the_end else ()))):
            await first_token_s(quick, http)
            seen.served += 1
            seen.router_growth = max(seen.router_growth, router.memory_info().rss - before)
            seen.triton_growth = max(seen.triton_growth, triton.memory_info().rss - triton_before)
            await asyncio.sleep(0.25)
    seen.headers_s = await asyncio.gather(*headers)
    if to_the_end:
        seen.bodies_s, seen.stalled_s = await asyncio.gather(*bodies), await stalling
    else:
        seen.ended_early = [each.done() for each in others]
        for each in others:
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    return seen


@pytest.fixture(scope="module")
def seen(quick: Fortress, thorough: bool) -> Seen:
    return asyncio.run(watch(quick, 250 if thorough else 100, STALLED, to_the_end=thorough))


async def test_t05_headers_and_bodies_that_trickle_in_are_ended_in_time(seen: Seen, sheet: Fortress) -> None:
    """Bodies to their end with --thorough alone; tests/router/http has shorter limits for them."""
    assert not any(seen.ended_early)
    assert all(HEADER_S - 1 <= each <= HEADER_S + patience(SLACK_S) for each in seen.headers_s)
    assert all(BODY_S - 1 <= each <= BODY_S + patience(SLACK_S) for each in seen.bodies_s)
    assert seen.idle_cpu_share <= 0.1, "all of them together cost a tenth of a core at most"
    assert seen.served >= 5, "others are served meanwhile"


async def test_t06_a_client_that_stops_reading_is_bounded_and_then_ended(seen: Seen, sheet: Fortress) -> None:
    """Beside what is buffered for each there is its connection, at the price of an idle one.

    Triton keeps something for each token until the stream ends, whoever reads it.
    """
    assert seen.stalled_s <= STALL_S + 2 * patience(SLACK_S)
    assert seen.router_growth <= STALLED * ((256 + 64) << 10) + ALLOCATOR_BYTES
    assert seen.triton_growth <= STALLED * TRITON_BYTES


async def test_t07_a_storm_of_disconnects_affects_no_other_client(
    sheet: Fortress, thorough: bool, figure: Callable[[str], None]
) -> None:
    """A third leave within three milliseconds; those who stay get every token."""
    quick = sheet
    cancels, survivors = (3000, 1000) if thorough else (450, 150)
    chance = random.Random(7)
    body = completion(quick, 400)
    at_once = asyncio.Semaphore(60)

    async def leave(after_s: float) -> None:
        async with at_once:
            _, writer = await asyncio.open_connection("127.0.0.1", quick.port)
            writer.write(head(quick, "/v1/completions", len(body)) + body)
            await writer.drain()
            await asyncio.sleep(after_s)
            writer.transport.abort()

    async def stay(http: httpx.AsyncClient) -> str:
        async with at_once:
            answer = await http.post("/v1/completions", json=quick.completion(20))
            assert answer.status_code == 200, answer.text
            text: str = answer.json()["choices"][0]["text"]
            return text

    before = quick.router.memory_info().rss
    async with quick.client() as http:
        storm = [leave(chance.uniform(0, 0.003)) for _ in range(cancels // 3)]
        storm += [leave(chance.uniform(0.003, 0.5)) for _ in range(cancels - len(storm))]
        staying = [stay(http) for _ in range(survivors)]
        everybody: list[object] = [*storm, *staying]
        chance.shuffle(everybody)
        results = await asyncio.gather(*everybody)  # type: ignore[call-overload]  # of two kinds
    texts = [each for each in results if each is not None]
    assert texts == [quick.text_of(20)] * survivors
    figure(f"{cancels:,} leave, {survivors:,} of {survivors:,} others whole")

    async def is_idle() -> bool:
        return await quick.in_flight() == 0 and quick.stack.used_blocks() == 0

    await until(is_idle, "places are still taken")
    assert quick.router.memory_info().rss - before <= 10 << 20


async def test_t09_idle_connections_cost_little_and_slow_no_request_down(
    sheet: Fortress, thorough: bool, figure: Callable[[str], None]
) -> None:
    """What others pay is seen in the router's processor time: waiting times are the machine's.

    A machine that is slower for a while makes one side dear, not the same side every time.
    """
    quick, streams = sheet, 200 if thorough else 100
    router = quick.router

    async def cost_s() -> float:
        began_s = cpu_of(router)
        async with quick.client() as http:
            answers = await asyncio.gather(
                *(http.post("/v1/completions", json=quick.completion(20)) for _ in range(streams))
            )
        assert [each.status_code for each in answers] == [200] * streams
        return cpu_of(router) - began_s

    await cost_s()
    per_connection, ratios = list[float](), list[float]()
    while not ratios or (ratios[-1] > 1.3 and len(ratios) < 4):
        alone_s = min([await cost_s() for _ in range(3)])
        before = router.memory_info().rss
        opened = await open_idle(quick, IDLE)
        per_connection.append((router.memory_info().rss - before) / IDLE)
        ratios.append(min([await cost_s() for _ in range(3)]) / alone_s)
        for _, writer in opened:
            writer.transport.abort()
    figure(f"{per_connection[0] / 1024:.0f} KB each; {ratios[-1]:.2f} times the work for others")
    assert per_connection[0] <= 64 << 10
    assert ratios[-1] <= 1.3, ratios


async def open_idle(quick: Fortress, count: int) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    opened: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    for _ in range(count // 100):
        connecting = (asyncio.open_connection("127.0.0.1", quick.port) for _ in range(100))
        for reader, writer in await asyncio.gather(*connecting):
            writer.write(b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n")
            await reader.readuntil(b'"live"}')
            opened.append((reader, writer))
    return opened
