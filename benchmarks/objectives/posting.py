"""Requests that are answered whole, at random moments of a steady rate, judged from the planned moment."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp

from loadtest.replay.schedule import Act, keep_time

Body = Callable[[int], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Posted:
    """`at_s` since all began, `took_s` since it was to be sent."""

    at_s: float
    took_s: float
    status: int


@dataclass(frozen=True, slots=True)
class _Planned:
    at_s: float
    number: int


@dataclass(frozen=True)
class Door:
    """Where requests of one model go, and what they say."""

    url: str
    path: str
    body: Body


def post(door: Door, per_s: float, seconds: float, seed: int = 0) -> list[Posted]:
    """Poisson arrivals."""
    chance = random.Random(seed)
    plan, at_s = [], chance.expovariate(per_s)
    while at_s < seconds:
        plan.append(at_s)
        at_s += chance.expovariate(per_s)
    return asyncio.run(_post_all(door, plan))


def post_alone(door: Door, requests: int, pause_s: float = 0.1) -> list[Posted]:
    """One after the other, far apart: nobody would join them in a batch."""
    return asyncio.run(_post_all(door, [pause_s * number for number in range(requests)]))


async def _post_all(door: Door, plan: list[float]) -> list[Posted]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(door.url, connector=connector) as session:
        async with session.post(door.path, json=door.body(-1)) as response:
            await response.read()  # the first connection is not what is measured
        start_s = time.perf_counter()
        posted: list[Posted] = []

        def prepare(each: _Planned) -> Act:
            body = json.dumps(door.body(each.number)).encode()
            return partial(_post_one, session, door.path, body, each.at_s, start_s, posted)

        await keep_time([_Planned(at_s, number) for number, at_s in enumerate(plan)], prepare, start_s)
        return sorted(posted, key=lambda each: each.at_s)


async def _post_one(
    session: aiohttp.ClientSession,
    path: str,
    body: bytes,
    at_s: float,
    start_s: float,
    posted: list[Posted],
) -> None:
    headers = {"content-type": "application/json"}
    status = 0
    try:
        async with session.post(path, data=body, headers=headers) as response:
            await response.read()
            status = response.status
    except (aiohttp.ClientError, asyncio.TimeoutError):
        pass
    posted.append(Posted(at_s, time.perf_counter() - start_s - at_s, status))
