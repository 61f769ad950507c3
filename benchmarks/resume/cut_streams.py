"""Streams whose connections are cut at random tokens while one of two routers is killed."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from benchmarks.resume.routers import Routers
from benchmarks.stack import RunningStack

_AT_ONCE = 48
_PATH = "/v1/chat/completions"
_SUBJECTS = ("the sea", "a bicycle", "winter", "bread", "the moon", "a bridge", "rain", "an old clock")
_LAST_TRY_S = 120.0


@dataclass
class Told:
    """What one client has of one answer."""

    text: str = ""
    finish: str = ""
    request_id: str = ""
    tokens: int = 0  # as the answer itself says at its end
    numbers: list[int] = field(default_factory=list)
    cuts: int = 0
    errors: list[str] = field(default_factory=list)
    gap_s: float = 0.0  # the longest time without an event

    def take(self, event: dict[str, Any]) -> None:
        self.request_id = event.get("id", self.request_id)
        for choice in event.get("choices", ()):
            self.text += choice["delta"].get("content") or ""
            self.finish = choice["finish_reason"] or self.finish
        if event.get("usage"):
            self.tokens = event["usage"]["completion_tokens"]


@dataclass
class Result:
    streams: int
    cuts: int
    same: int
    in_order: int
    billed_once: int
    failed: list[str]
    longest_gap_s: float
    took_s: float
    idle_after_s: float  # from the kill until the engine had nothing to do but what was asked for

    @property
    def is_clean(self) -> bool:
        return self.same == self.in_order == self.billed_once == self.streams and not self.failed


def body_of(model: str, number: int, max_tokens: int) -> dict[str, Any]:
    """Even ones are greedy, odd ones sampled with a seed."""
    sampling = {"temperature": 0} if number % 2 == 0 else {"temperature": 1.0, "seed": number}
    subject = _SUBJECTS[number % len(_SUBJECTS)]
    return {
        "model": model,
        "messages": [{"role": "user", "content": f"Tell me about {subject}, part {number}."}],
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        **sampling,
    }


async def _events(
    http: httpx.AsyncClient, url: str, body: dict[str, Any], headers: dict[str, str]
) -> AsyncIterator[tuple[int, str]]:
    """The number and the data of each."""
    async with http.stream("POST", url + _PATH, json=body, headers=headers) as response:
        if response.status_code != 200:
            raise RuntimeError(f"{response.status_code}: {(await response.aread()).decode()}")
        number = 0
        async for line in response.aiter_lines():
            if line.startswith("id: "):
                number = int(line[4:])
            elif line.startswith("data: "):
                yield number, line[6:]


async def _undisturbed(http: httpx.AsyncClient, url: str, body: dict[str, Any]) -> Told:
    told = Told()
    async for _, data in _events(http, url, body, {}):
        if data != "[DONE]":
            told.take(json.loads(data))
    return told


async def _disturbed(
    http: httpx.AsyncClient, routers: Routers, body: dict[str, Any], key: str, chance: random.Random
) -> Told:
    told, began_s = Told(), time.monotonic()
    last_s, is_over = began_s, False
    while not is_over and time.monotonic() - began_s < _LAST_TRY_S:
        url = chance.choice(routers.both).url
        headers = {"idempotency-key": key}
        if told.numbers:
            headers["last-event-id"] = str(told.numbers[-1])
        # The first connection is always cut, the next ones now and then.
        cut_after = chance.randint(1, body["max_tokens"]) if not told.cuts or chance.random() < 0.3 else 10**6
        try:
            async for number, data in _events(http, url, body, headers):
                now_s = time.monotonic()
                told.gap_s, last_s = max(told.gap_s, now_s - last_s) if told.numbers else 0.0, now_s
                told.numbers.append(number)
                is_over = data == "[DONE]"
                if not is_over:
                    event = json.loads(data)
                    if "error" in event:
                        told.numbers.pop()
                        raise RuntimeError(data)
                    told.take(event)
                cut_after -= 1
                if not cut_after and not is_over:
                    told.cuts += 1
                    break
        except httpx.TransportError:  # the router is dead, or died just now
            told.cuts += 1
            await asyncio.sleep(0.1)
        except RuntimeError as error:
            told.errors.append(str(error))
            if len(told.errors) > 3:
                return told
            await asyncio.sleep(0.5)
    return told


async def run(
    stack: RunningStack, routers: Routers, streams: int, max_tokens: int, seed: int, orphans: int = 4
) -> Result:
    """Half way the first router is killed; it is started again at the end, and hands in its last bills.

    `orphans` are long streams without a key that it has then: the engine must not go on with them.
    """
    chance, places = random.Random(seed), asyncio.Semaphore(_AT_ONCE)
    bodies = [body_of(stack.model, number, max_tokens) for number in range(streams)]
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=60, trust_env=False, limits=limits) as http:

        async def undisturbed(body: dict[str, Any]) -> Told:
            async with places:
                return await _undisturbed(http, routers.both[1].url, body)

        expected = await asyncio.gather(*map(undisturbed, bodies))
        ended, half = 0, asyncio.Event()

        async def disturbed(number: int, body: dict[str, Any]) -> Told:
            nonlocal ended
            async with places:
                own = random.Random(chance.random())
                found = await _disturbed(http, routers, body, f"{seed}-{number}", own)
            ended += 1
            if ended * 2 >= streams:
                half.set()
            return found

        began_s = time.monotonic()
        started = [asyncio.ensure_future(disturbed(number, body)) for number, body in enumerate(bodies)]
        await half.wait()
        doomed = routers.both[0].url
        await asyncio.gather(*(_orphan(http, doomed, stack.model) for _ in range(orphans)))
        routers.both[0].kill()
        killed_s = time.monotonic()
        found = await asyncio.gather(*started)
        took_s = time.monotonic() - began_s
        idle_after_s = await _until_idle(stack) - killed_s
    await asyncio.to_thread(routers.both[0].start)
    bills = await _bills(routers, {told.request_id for told in found})
    return Result(
        streams=streams,
        cuts=sum(told.cuts for told in found),
        same=sum(a.text == b.text and a.finish == b.finish for a, b in zip(expected, found, strict=True)),
        in_order=sum(told.numbers == list(range(1, len(told.numbers) + 1)) for told in found),
        billed_once=sum(bills.get(told.request_id) == told.tokens > 0 for told in found),
        failed=[error for told in found for error in told.errors],
        longest_gap_s=max(told.gap_s for told in found),
        took_s=took_s,
        idle_after_s=idle_after_s,
    )


async def _orphan(http: httpx.AsyncClient, url: str, model: str) -> None:
    """One that is begun, and whose client waits for more than there will ever be."""
    body = {**body_of(model, 0, 4000), "ignore_eos": True}
    request = http.build_request("POST", url + _PATH, json=body)
    response = await http.send(request, stream=True)
    await anext(response.aiter_raw())


async def _until_idle(stack: RunningStack) -> float:
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s:
        if not await asyncio.to_thread(stack.used_blocks):
            return time.monotonic()
        await asyncio.sleep(0.2)
    raise TimeoutError("the engine goes on with something")


async def _bills(routers: Routers, wanted: set[str]) -> dict[str, int]:
    for _ in range(150):
        if wanted <= routers.bills().keys():
            break
        await asyncio.sleep(0.2)
    return routers.bills()
