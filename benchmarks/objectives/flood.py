"""`python -m benchmarks.objectives.flood`: a calm tenant beside one that floods, on the whole stack.

The calm tenant asks once a second for 16 tokens. The other asks 40 times at once for 120 tokens each, and
again as soon as one is answered or refused. Both are served together, and then each alone, under the same
objectives. All variants take some twelve minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console

from benchmarks.objectives.arena import paced
from benchmarks.objectives.flood_goals import (
    FIRST_TOKEN,
    INTER_TOKEN_S,
    Answer,
    Goal,
    Phase,
    goal_table,
    goals,
    show,
)
from benchmarks.objectives.prediction import Engine
from benchmarks.objectives.serving import READ_WITHIN_S, Served, Setup, serving
from python_backend.costs.step_cost import StepCost

CALM_TOKENS, FLOOD_TOKENS = 16, 120
ALONE_S = 20  # enough to know what each takes alone
PACED = Engine(places=64, kv_tokens=20_480, step_tokens=512)
VARIANTS = ("plain", "four", "open", "tiers", "restart")


class Clients:
    """Asks one stack, for one phase."""

    def __init__(self, served: Served, tiers: dict[str, str]) -> None:
        self._served = served
        self._tiers = tiers
        self._began_s = 0.0
        self.answers: list[Answer] = []

    def play(self, seconds: float, *roles: Callable[[Clients], Coroutine[Any, Any, None]]) -> list[Answer]:
        asyncio.run(self._play(seconds, roles))
        self._served.wait_until_idle()
        return self.answers

    async def _play(
        self, seconds: float, roles: Sequence[Callable[[Clients], Coroutine[Any, Any, None]]]
    ) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(self._served.url, connector=connector) as self._session:
            self._began_s = time.perf_counter()
            before = asyncio.all_tasks()
            running = [asyncio.create_task(role(self)) for role in roles]
            await asyncio.sleep(seconds)
            started = {*running, *(asyncio.all_tasks() - before)}
            for task in started:
                task.cancel()
            await asyncio.gather(*started, return_exceptions=True)

    def now_s(self) -> float:
        return time.perf_counter() - self._began_s

    async def ask(self, tenant: str, tokens: int) -> Answer:
        answer = Answer(tenant, self.now_s())
        self.answers.append(answer)
        body = {
            "model": self._served.model,
            "messages": [{"role": "user", "content": f"Tell a story about the number {len(self.answers)}."}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "service_tier": self._tiers.get(tenant, "default"),
        }
        headers = {"authorization": f"Bearer {self._served.keys[tenant]}"}
        async with self._session.post("/v1/chat/completions", json=body, headers=headers) as response:
            if response.status != 200:
                answer.retry_after_s = float(response.headers.get("retry-after", "nan"))
            else:
                await self._read(response, answer)
            answer.status = response.status
        return answer

    async def _read(self, response: aiohttp.ClientResponse, answer: Answer) -> None:
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if event["choices"] and event["choices"][0]["delta"].get("content"):
                answer.heard_s.append(self.now_s())
            if event.get("usage"):
                answer.tokens = event["usage"]["completion_tokens"]


async def calm(clients: Clients, tenant: str, count: int) -> None:
    asked = []
    for number in range(count):
        await asyncio.sleep(max(0.0, number - clients.now_s()))
        asked.append(asyncio.create_task(clients.ask(tenant, CALM_TOKENS)))
    await asyncio.gather(*asked)


async def flood(clients: Clients, tenant: str, at_once: int) -> None:
    async def again() -> None:
        while True:
            await clients.ask(tenant, FLOOD_TOKENS)

    await asyncio.gather(*(again() for _ in range(at_once)))


async def open_flood(clients: Clients, tenant: str, per_s: float) -> None:
    chance, asked = random.Random(1), set()
    while True:
        asked.add(asyncio.create_task(clients.ask(tenant, FLOOD_TOKENS)))
        await asyncio.sleep(chance.expovariate(per_s))


Role = Callable[[Clients], Coroutine[Any, Any, None]]


def roles_of(variant: str, count: int) -> tuple[list[Role], list[Role]]:
    """The calm ones, and those that flood."""
    if variant == "four":
        calms = [lambda c: calm(c, "calm", count), lambda c: calm(c, "calm-2", count)]
        return calms, [lambda c: flood(c, "flood", 20), lambda c: flood(c, "flood-2", 20)]
    flooding = (
        (lambda c: open_flood(c, "flood", 10.0)) if variant == "open" else lambda c: flood(c, "flood", 40)
    )
    return [lambda c: calm(c, "calm", count)], [flooding]


def measure(served: Served, variant: str, count: int, is_short: bool = False) -> list[Phase]:
    tiers = ["--tier", "all"] if variant == "tiers" else []
    inter_token = f"{1000 * INTER_TOKEN_S:g}ms"
    served.inflight(
        *("slo", "set", served.model, "--first-token", FIRST_TOKEN, "--inter-token", inter_token), *tiers
    )
    time.sleep(READ_WITHIN_S)
    calms, floods = roles_of(variant, count)
    tier_of = {"flood": "priority"} if variant == "tiers" else {}
    phases = []
    # The first burst finds an engine that knows nothing.
    wanted = [
        ("both", count, [*calms, *floods]),
        ("flood alone", ALONE_S, floods),
        ("calm alone", ALONE_S, calms),
    ]
    for name, lasts_s, roles in wanted[:1] if is_short else wanted:
        seconds = float(lasts_s) + 1.0
        phases.append(Phase(name, seconds, Clients(served, tier_of).play(seconds, *roles)))
    print(served.inflight("slo", "show", served.model))
    print(served.inflight("tune", "explain", served.model))
    return phases


def run(variant: str, count: int, console: Console, cost: StepCost | None) -> list[Goal]:
    tenants = ("calm", "calm-2", "flood", "flood-2") if variant == "four" else ("calm", "flood")
    with tempfile.TemporaryDirectory() as folder:
        # What is known of the steps lies beside the packed weights: nothing at first, all after a restart.
        engine = {"inflight_packed_cache_dir": str(Path(folder) / "packed")}
        setup = Setup(engine if cost is None else {**engine, **paced(cost, PACED)}, embeddings=False)
        if variant == "restart":
            with serving(setup, tenants) as served:
                measure(served, variant, min(count, 20), is_short=True)
        with serving(setup, tenants) as served:
            phases = measure(served, variant, count)
    show(console, variant, phases)
    return list(goals(variant, phases))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variants", default="plain", help=f"some of {', '.join(VARIANTS)}")
    parser.add_argument("--count", type=int, default=40, help="requests of the calm tenant, one a second")
    parser.add_argument(
        "--cost", help="of a paced engine's steps, as in `inflight simulate`; else the real one"
    )
    asked = parser.parse_args()
    cost = StepCost(*map(float, asked.cost.split(","))) if asked.cost else None
    console = Console(width=150)
    variants = asked.variants.split(",")
    if unknown := [each for each in variants if each not in VARIANTS]:
        sys.exit(f"unknown variant {unknown[0]}; there are: {', '.join(VARIANTS)}")
    found = [goal for variant in variants for goal in run(variant, asked.count, console, cost)]
    console.print(goal_table(found))
    sys.exit(not all(goal.is_met for goal in found))


if __name__ == "__main__":
    main()
