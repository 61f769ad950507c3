"""The longest gaps between a neighbour's tokens, under an attack and under as many honest requests."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.synchronize import Event

import httpx

from benchmarks.attacks.case import Case, Send, Sender
from benchmarks.attacks.serving import PACED_TOKENS
from loadtest.percentiles import percentile
from tests.router.running import MODEL

ROUND_S = 2.0
_STREAMS = 8
_REST_S = 0.3
_PREPARED_S = 60.0
_TIMEOUT_S = 30.0
_ASKED = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": PACED_TOKENS}


@dataclass(frozen=True)
class Side:
    """What the neighbour saw in the rounds of one side: of each the 99.9th percentile of its gaps."""

    gaps_ms: tuple[float, ...]

    @property
    def gap_ms(self) -> float:
        """The median of the rounds: what else happens on a machine rarely hits most of them."""
        return statistics.median(self.gaps_ms)


@dataclass(frozen=True)
class Found:
    case: Case
    honest: Side
    attacked: Side

    @property
    def ratio(self) -> float:
        return self.attacked.gap_ms / self.honest.gap_ms

    @property
    def is_met(self) -> bool:
        return self.ratio <= self.case.goal


def measure(
    case: Case, port: int, keys: Mapping[str, str], rounds: int, told: Callable[[str], None]
) -> Found:
    """Pairs of rounds, each in the other order, so that a busy machine hurts both sides alike."""
    sides: dict[str, list[float]] = {"honest": [], "attack": []}
    with _sending(case, port, keys) as go:
        for number in range(rounds + 1):
            for side in ("honest", "attack") if number % 2 else ("attack", "honest"):
                told(f"{case.name}: {side}, round {number} of {rounds}")
                go[side].set()
                gap_ms = asyncio.run(_watch(port, keys["neighbour"], ROUND_S if number else ROUND_S / 4))
                go[side].clear()
                time.sleep(_REST_S)
                if number:  # the first pair is for connections and caches
                    sides[side].append(gap_ms)
    return Found(case, Side(tuple(sides["honest"])), Side(tuple(sides["attack"])))


async def _watch(port: int, key: str, round_s: float) -> float:
    """Streams of the neighbour for so long; returns the 99.9th percentile of the gaps in ms."""
    gaps_ms: list[float] = []
    headers = {"authorization": f"Bearer {key}"}
    base = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=base, headers=headers, timeout=_TIMEOUT_S, trust_env=False) as http:
        end_s = time.monotonic() + round_s
        await asyncio.gather(*(_stream(http, end_s, gaps_ms) for _ in range(_STREAMS)))
    return percentile(sorted(gaps_ms or [round_s * 1e3]), 0.999)  # where nothing came, all of it was a gap


async def _stream(http: httpx.AsyncClient, end_s: float, gaps_ms: list[float]) -> None:
    while (last_s := time.monotonic()) < end_s:
        is_first = True
        with suppress(httpx.HTTPError):
            async with http.stream("POST", "/v1/chat/completions", json={**_ASKED, "stream": True}) as answer:
                async for line in answer.aiter_lines():
                    if '"content":"word' not in line:
                        continue
                    now_s = time.monotonic()
                    if not is_first:
                        gaps_ms.append((now_s - last_s) * 1e3)
                    last_s, is_first = now_s, False
                    if now_s > end_s:
                        break
                else:
                    continue
            return
        gaps_ms.append((time.monotonic() - last_s) * 1e3)  # it was cut off, or nothing came any more


@contextmanager
def _sending(case: Case, port: int, keys: Mapping[str, str]) -> Iterator[dict[str, Event]]:
    context = multiprocessing.get_context("fork")  # a case has functions that cannot be sent to another
    go = {side: context.Event() for side in ("honest", "attack")}
    ready, end = context.Event(), context.Event()
    process = context.Process(target=_send, args=(case, port, keys, go, ready, end), daemon=True)
    process.start()
    try:
        if not ready.wait(_PREPARED_S):
            raise TimeoutError(f"{case.name}: it could not be prepared")
        yield go
    finally:
        end.set()
        process.join(5)
        process.kill()


def _send(
    case: Case, port: int, keys: Mapping[str, str], go: dict[str, Event], ready: Event, end: Event
) -> None:
    """In a process that gives way: an attacker is on another machine, and takes nothing of this one."""
    os.nice(10)

    async def send() -> None:
        limits = httpx.Limits(max_connections=case.at_once)
        base = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(
            base_url=base, timeout=_TIMEOUT_S, trust_env=False, limits=limits
        ) as http:
            sender = Sender(http, keys, port)
            if case.prepare is not None:
                sender = replace(sender, prepared=await case.prepare(sender))
            ready.set()
            while not end.is_set():
                for side, what in (("honest", case.honest), ("attack", case.attack)):
                    if go[side].is_set():
                        await _round(case, what, sender, go[side])
                await asyncio.sleep(0.01)

    asyncio.run(send())


async def _round(case: Case, send: Send, sender: Sender, go: Event) -> None:
    """By a schedule, whether the one before was answered or not; at the end whoever is left leaves."""
    under_way: set[asyncio.Task[None]] = set()
    began_s, number = time.monotonic(), 0
    while go.is_set():
        if len(under_way) < case.at_once:
            task = asyncio.ensure_future(_alone(send, sender, number))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        number += 1
        await asyncio.sleep(max(0.0, began_s + number / case.per_s - time.monotonic()))
    left = [*under_way]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


async def _alone(send: Send, sender: Sender, number: int) -> None:
    with suppress(httpx.HTTPError, OSError):
        await send(sender, number)
