"""`python -m benchmarks.objectives.flood`: a calm tenant beside one that floods, on the whole stack.

The calm tenant asks once a second for 16 tokens. The other asks 40 times at once for 120 tokens each, and
again as soon as one is answered or refused. Each is served alone, under the same objectives, and then both.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console
from rich.table import Table

from benchmarks.objectives.arena import paced
from benchmarks.objectives.prediction import Engine
from benchmarks.objectives.serving import READ_WITHIN_S, Served, Setup, serving
from loadtest.percentiles import percentile
from python_backend.costs.step_cost import StepCost

FIRST_TOKEN, INTER_TOKEN_S = "2s", 0.15
CALM_TOKENS, FLOOD_TOKENS = 16, 120
WINDOW_S, SETTLE_S = 5.0, 3.0
PACED = Engine(places=64, kv_tokens=20_480, step_tokens=512)
VARIANTS = ("plain", "four", "open", "tiers", "restart")
# What is to be shown: of the calm tenant, of all tenants, and of the flood.
MOST_FIRST_TOKEN_S, MOST_TIMES_ALONE, LEAST_FLOOD_SHARE = 0.5, 3.0, 0.9


@dataclass
class Answer:
    """Times since the phase began; `heard_s` has one for each piece of the stream."""

    tenant: str
    at_s: float
    status: int = 0
    heard_s: list[float] = field(default_factory=list)
    tokens: int = 0
    retry_after_s: float | None = None

    @property
    def is_whole(self) -> bool:
        return self.status == 200 and self.tokens > 0

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """When, and how long; tokens that came together share the time equally."""
        each = (len(self.heard_s) - 1) / max(self.tokens - 1, 1) if self.tokens else 1.0
        return [(now, (now - before) * each) for before, now in itertools.pairwise(self.heard_s)]


@dataclass(frozen=True)
class Phase:
    name: str
    seconds: float
    answers: list[Answer]

    def of(self, prefix: str) -> list[Answer]:
        return [each for each in self.answers if each.tenant.startswith(prefix)]

    def tokens_per_s(self, prefix: str) -> float:
        """Of streams that were cut when the phase ended, pieces stand for tokens."""
        return sum(each.tokens or len(each.heard_s) for each in self.of(prefix)) / self.seconds

    def worst_window_p95_s(self, prefix: str) -> float:
        windows: dict[int, list[float]] = {}
        for answer in self.of(prefix):
            for at_s, gap_s in answer.gaps:
                if SETTLE_S <= at_s <= self.seconds:
                    windows.setdefault(int((at_s - SETTLE_S) / WINDOW_S), []).append(gap_s)
        return max((percentile(sorted(gaps), 0.95) for gaps in windows.values()), default=float("nan"))


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
            tasks = [asyncio.create_task(role(self)) for role in roles]
            await asyncio.sleep(seconds)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

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
    seconds = float(count) + 1.0
    phases = []
    wanted = {"both": [*calms, *floods], "flood alone": floods, "calm alone": calms}
    for name in ("both",) if is_short else wanted:  # the first burst finds an engine that knows nothing
        answers = Clients(served, tier_of).play(seconds, *wanted[name])
        phases.append(Phase(name, seconds, answers))
    print(served.inflight("slo", "show", served.model))
    print(served.inflight("tune", "explain", served.model))
    return phases


def show(console: Console, variant: str, phases: Sequence[Phase]) -> bool:
    table = Table(
        title=f"flood, {variant}: first token {FIRST_TOKEN}, inter-token {1000 * INTER_TOKEN_S:g} ms"
    )
    columns = ("phase", "tenant", "asked", "whole", "refused", "first token p95", "answer p50", "p95")
    for column in (*columns, "tokens/s", "worst 5 s window, gap p95"):
        table.add_column(column)
    for phase in phases:
        for tenant in sorted({each.tenant for each in phase.answers}):
            table.add_row(phase.name, tenant, *_cells(phase, tenant))
    console.print(table)
    by_name = {phase.name: phase for phase in phases}
    both, alone = by_name["both"], by_name.get("calm alone")
    calms = [each for each in both.of("calm") if each.at_s < both.seconds - 1.0]
    first_p95_s = percentile(sorted(_first_s(each) for each in calms), 0.95)
    goals = [
        (f"calm: {sum(each.is_whole for each in calms)} of {len(calms)}", all(e.is_whole for e in calms)),
        (f"calm: first token p95 {first_p95_s:.2f} s", first_p95_s < MOST_FIRST_TOKEN_S),
    ]
    for tenant in ("calm", "flood"):
        worst_s = both.worst_window_p95_s(tenant)
        goals.append((f"{tenant}: worst window's gap p95 {1000 * worst_s:.0f} ms", worst_s <= INTER_TOKEN_S))
    if alone is not None:
        times = _whole_p50_s(calms) / max(_whole_p50_s(alone.of("calm")), 1e-9)
        goals.append((f"calm: answers take {times:.1f} times as long as alone", times <= MOST_TIMES_ALONE))
        share = both.tokens_per_s("flood") / max(by_name["flood alone"].tokens_per_s("flood"), 1e-9)
        goals.append((f"flood: {share:.0%} of its tokens alone", share >= LEAST_FLOOD_SHARE))
    for words, is_met in goals:
        console.print(f"{'met   ' if is_met else 'MISSED'}  {words}")
    return all(is_met for _, is_met in goals)


def _cells(phase: Phase, tenant: str) -> list[str]:
    answers = [each for each in phase.answers if each.tenant == tenant]
    alone = Phase(phase.name, phase.seconds, answers)
    whole = sorted(each.heard_s[-1] - each.at_s for each in answers if each.is_whole)
    first = sorted(_first_s(each) for each in answers if each.heard_s)
    refused = sum(each.status not in (0, 200) for each in answers)
    return [
        *(str(len(answers)), str(len(whole)), str(refused)),
        *(f"{percentile(first, 0.95):.2f} s", f"{percentile(whole, 0.5):.2f} s"),
        *(f"{percentile(whole, 0.95):.2f} s", f"{alone.tokens_per_s(tenant):.0f}"),
        f"{1000 * alone.worst_window_p95_s(tenant):.0f} ms",
    ]


def _first_s(answer: Answer) -> float:
    return answer.heard_s[0] - answer.at_s if answer.heard_s else float("inf")


def _whole_p50_s(answers: Sequence[Answer]) -> float:
    return percentile(sorted(each.heard_s[-1] - each.at_s for each in answers if each.is_whole), 0.5)


def run(variant: str, count: int, console: Console, cost: StepCost | None) -> bool:
    tenants = ("calm", "calm-2", "flood", "flood-2") if variant == "four" else ("calm", "flood")
    with tempfile.TemporaryDirectory() as folder:
        # What is known of the steps lies beside the packed weights: nothing at first, all after a restart.
        engine = {"inflight_packed_cache_dir": str(Path(folder) / "packed")}
        setup = Setup(engine if cost is None else {**engine, **paced(cost, PACED)}, embeddings=False)
        if variant == "restart":
            with serving(setup, tenants) as served:
                measure(served, variant, min(count, 20), is_short=True)
        with serving(setup, tenants) as served:
            return show(console, variant, measure(served, variant, count))


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
    is_met = True
    for variant in asked.variants.split(","):
        if variant not in VARIANTS:
            sys.exit(f"unknown variant {variant}; there are: {', '.join(VARIANTS)}")
        is_met &= run(variant, asked.count, console, cost)
    sys.exit(not is_met)


if __name__ == "__main__":
    main()
