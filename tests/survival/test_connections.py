"""Clients that are slow, idle or gone: T05, T06, T07 and T09."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, field

import httpx
import pytest

from tests.survival.conftest import Fortress, until

HEADER_S, BODY_S, STALL_S = 10.0, 30.0, 30.0
SLACK_S = 3.0


def head(quick: Fortress, path: str, length: int) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {quick.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    ).encode()


def completion(quick: Fortress, tokens: int) -> bytes:
    return json.dumps(quick.completion(tokens, stream=True)).encode()


@dataclass
class Trickle:
    """A client that sends one byte a second until the server has had enough of it."""

    data: bytes
    lasted_s: float = 0.0

    async def run(self, port: int, limit_s: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        began_s = time.monotonic()
        try:
            for position in range(int(limit_s)):
                writer.write(self.data[position : position + 1])
                try:
                    await asyncio.wait_for(reader.read(1), 1.0)
                    break
                except asyncio.TimeoutError:
                    continue
        except ConnectionError:
            pass
        self.lasted_s = time.monotonic() - began_s
        writer.close()


async def first_token_s(quick: Fortress, http: httpx.AsyncClient) -> float:
    began_s = time.monotonic()
    async with http.stream("POST", "/v1/completions", json=quick.completion(2, stream=True)) as response:
        assert response.status_code == 200
        async for _ in response.aiter_lines():
            return time.monotonic() - began_s
    raise AssertionError("there was no token")


@dataclass
class HalfAMinute:
    """What was seen while slow clients of three kinds held on, all at the same time."""

    headers: list[Trickle] = field(default_factory=list)
    bodies: list[Trickle] = field(default_factory=list)
    stalled_s: list[float] = field(default_factory=list)
    router_growth: int = 0
    triton_growth: int = 0
    served: int = 0


async def stall(quick: Fortress, seen: HalfAMinute) -> None:
    """Asks for a long answer and reads none of it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", quick.port, limit=1024)
    body = completion(quick, 1_000_000)
    writer.write(head(quick, "/v1/completions", len(body)) + body)
    await writer.drain()
    began_s = time.monotonic()
    reader._transport.pause_reading()  # type: ignore[attr-defined]  # there is no public way

    async def is_over() -> bool:
        return await quick.in_flight() <= 1  # the others' stream, at most

    await until(is_over, "a stalled client is never ended", STALL_S + 3 * SLACK_S)
    seen.stalled_s.append(time.monotonic() - began_s)
    writer.transport.abort()


@pytest.fixture(scope="module")
async def half_a_minute(quick: Fortress, full: bool) -> HalfAMinute:
    seen = HalfAMinute()
    count = 250 if full else 100
    triton = quick.process("tritonserver")
    async with quick.client() as http:
        await first_token_s(quick, http)
    before, triton_before = quick.router.memory_info().rss, triton.memory_info().rss
    slow_head = b"POST /v1/completions HTTP/1.1\r\nx-slow: " + b"a" * 200
    slow_body = head(quick, "/v1/completions", 500)
    seen.headers = [Trickle(slow_head) for _ in range(count)]
    seen.bodies = [Trickle(b"{" * 200) for _ in range(count)]

    async def slow_body_client(trickle: Trickle) -> None:
        trickle.data = slow_body[-1:] + trickle.data
        reader, writer = await asyncio.open_connection("127.0.0.1", quick.port)
        writer.write(slow_body)
        began_s = time.monotonic()
        while time.monotonic() < began_s + BODY_S + 2 * SLACK_S:
            try:
                writer.write(b" ")
                if await asyncio.wait_for(reader.read(1), 1.0) is not None:
                    break
            except asyncio.TimeoutError:
                continue
            except ConnectionError:
                break
        trickle.lasted_s = time.monotonic() - began_s
        writer.close()

    async def others() -> None:
        async with quick.client() as http:
            while True:
                await first_token_s(quick, http)
                seen.served += 1
                await asyncio.sleep(0.25)

    serving = asyncio.ensure_future(others())
    slow = [
        *(each.run(quick.port, HEADER_S + 2 * SLACK_S) for each in seen.headers),
        *(slow_body_client(each) for each in seen.bodies),
        stall(quick, seen),
    ]
    watching = [asyncio.ensure_future(each) for each in slow]
    peak = triton_peak = 0
    while not all(each.done() for each in watching):
        await asyncio.sleep(0.5)
        peak = max(peak, quick.router.memory_info().rss)
        triton_peak = max(triton_peak, triton.memory_info().rss)
    await asyncio.gather(*watching)
    serving.cancel()
    seen.router_growth, seen.triton_growth = peak - before, triton_peak - triton_before
    return seen


async def test_t05_headers_and_bodies_that_trickle_in_are_ended_in_time(
    half_a_minute: HalfAMinute, sheet: Fortress
) -> None:
    assert all(HEADER_S - 1 <= each.lasted_s <= HEADER_S + SLACK_S for each in half_a_minute.headers)
    assert all(BODY_S - 1 <= each.lasted_s <= BODY_S + SLACK_S for each in half_a_minute.bodies)
    assert half_a_minute.served >= 20, "others are served meanwhile"


async def test_t06_a_client_that_stops_reading_is_bounded_and_then_ended(
    half_a_minute: HalfAMinute, sheet: Fortress
) -> None:
    """The others' connections, 64 KB each, are in the growth too."""
    (lasted_s,) = half_a_minute.stalled_s
    assert lasted_s <= STALL_S + 2 * SLACK_S
    connections = len(half_a_minute.headers) + len(half_a_minute.bodies)
    assert half_a_minute.router_growth <= (256 << 10) + connections * (64 << 10) + (4 << 20)
    assert half_a_minute.triton_growth <= 20 << 20


async def test_t07_a_storm_of_disconnects_hurts_nobody(sheet: Fortress, full: bool) -> None:
    """A third leave within three milliseconds; those who stay get every token."""
    quick = sheet
    cancels, survivors = (3000, 1000) if full else (450, 150)
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
    assert quick.router.memory_info().rss - before <= 10 << 20


async def test_t09_idle_connections_cost_little_and_slow_nobody_down(sheet: Fortress, full: bool) -> None:
    quick = sheet
    idle, streams = 2000, 200 if full else 50
    before = quick.router.memory_info().rss
    opened = []
    request = b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n"
    for _ in range(idle // 100):
        connections = await asyncio.gather(
            *(asyncio.open_connection("127.0.0.1", quick.port) for _ in range(100))
        )
        for reader, writer in connections:
            writer.write(request)
            await reader.readuntil(b'"live"}')
        opened += connections
    per_connection = (quick.router.memory_info().rss - before) / idle
    async with quick.client() as http:
        answers = await asyncio.gather(
            *(http.post("/v1/completions", json=quick.completion(20)) for _ in range(streams))
        )
    assert [each.status_code for each in answers] == [200] * streams
    assert per_connection <= 64 << 10
    for _, writer in opened:
        writer.close()
