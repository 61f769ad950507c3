"""What one tenant's attacks do to the others: `python -m benchmarks.attacks`, alone and under each attack.

A stack runs with two tenants. One sends what costs the router or the engine most for its size, from a
process of its own that gives way to all others; meanwhile the health endpoint is asked fifty times a second,
and the other tenant streams short answers. Rounds without and with the attack alternate within seconds, each
pair in the other order, so that a busy machine hurts both alike; of all rounds the median counts. The exit
status is 1 if a goal is missed. It takes about ten minutes.

First, and without a stack, every shape of request is sent to every door: `benchmarks.held_interpreter`.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import statistics
import sys
import time
from argparse import ArgumentParser
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from multiprocessing.synchronize import Event
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks import held_interpreter
from benchmarks.stack import RunningStack, running_stack
from loadtest.percentiles import percentile
from router.core.tenant import Limits, Role
from router.tenants.administration import DEFAULT_SCOPES, Administration
from router.tenants.rbac import SYSTEM
from router.tenants.tenancy import open_administration
from tests.router.content.documents.pdf_files import pdf_bomb

_ROUND_S = 3.0
_PROBE_S = 0.02
_PAUSE_S = 0.02
_REFUSED_S = 0.1  # ten times sooner than told, but not as fast as this machine can: it has others to serve
_TIMEOUT_S = 60.0
_TEXT = "The quick brown fox jumps over the lazy dog 12345 times. " * 17_500  # not quite 1 MB
_JSON = {"content-type": "application/json"}
HEALTH_GOAL_MS = 50.0
FIRST_TOKEN_GOAL = 1.2

Send = Callable[[httpx.AsyncClient, str], Awaitable[None]]


@dataclass(frozen=True)
class Attack:
    """`rest_s` after a round: until what it has left behind is done. Goals are what others may notice."""

    name: str
    send: Send
    at_once: int
    limits: Limits = field(default_factory=Limits)
    rest_s: float = 0.5
    health_goal_ms: float | None = None
    first_token_goal: float | None = None


@dataclass
class Seen:
    """What the others saw, in milliseconds, by round."""

    health: list[list[float]] = field(default_factory=list)
    first_token: list[list[float]] = field(default_factory=list)

    @property
    def health_p99(self) -> float:
        """The median of the rounds'."""
        return statistics.median(percentile(sorted(each), 0.99) for each in self.health)

    @property
    def first_tokens(self) -> list[float]:
        """The median of each round."""
        return [statistics.median(each) for each in self.first_token]


@dataclass(frozen=True)
class Found:
    attack: str
    health_p99_ms: tuple[float, float]  # alone, attacked
    first_token_p50_ms: tuple[float, float]
    first_token_ratio: float  # the median of the rounds'
    ratios: tuple[float, ...]
    health_goal_ms: float | None
    first_token_goal: float | None

    @classmethod
    def of(cls, attack: Attack, alone: Seen, attacked: Seen) -> Found:
        pairs = zip(alone.first_tokens, attacked.first_tokens, strict=True)
        ratios = tuple(round(under / before, 2) for before, under in pairs)
        return cls(
            attack.name,
            (round(alone.health_p99, 1), round(attacked.health_p99, 1)),
            (
                round(statistics.median(alone.first_tokens), 1),
                round(statistics.median(attacked.first_tokens), 1),
            ),
            round(statistics.median(ratios), 2),
            ratios,
            attack.health_goal_ms,
            attack.first_token_goal,
        )

    @property
    def is_met(self) -> bool:
        is_healthy = self.health_goal_ms is None or self.health_p99_ms[1] < self.health_goal_ms
        is_quick = self.first_token_goal is None or self.first_token_ratio <= self.first_token_goal
        return is_healthy and is_quick

    def row(self) -> list[str]:
        health = "" if self.health_goal_ms is None else f"< {self.health_goal_ms:g} ms"
        first = "" if self.first_token_goal is None else f"≤ {self.first_token_goal:g}"
        pairs = [
            f"{alone:g} → {attacked:g} ms"
            for alone, attacked in (self.health_p99_ms, self.first_token_p50_ms)
        ]
        verdict = "met" if self.is_met else "MISSED"
        return [self.attack, pairs[0], health, pairs[1], f"{self.first_token_ratio:g}", first, verdict]


def _client(url: str, key: str) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=_TIMEOUT_S, trust_env=False)


# What an attacker sends; bodies are made once, so that its own work is not in the way of the others'


async def _post(client: httpx.AsyncClient, path: str, body: bytes) -> None:
    answer = await client.post(path, content=body, headers=_JSON)
    if answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
        await asyncio.sleep(_REFUSED_S)


@cache
def _long_response(model: str) -> bytes:
    body = {"model": model, "input": _TEXT, "truncation": "auto", "max_output_tokens": 8}
    return json.dumps(body).encode()


async def _long_responses(client: httpx.AsyncClient, model: str) -> None:
    await _post(client, "/v1/responses", _long_response(model))


async def _long_history(client: httpx.AsyncClient, model: str) -> None:
    """A conversation of 12 MB, then requests of a few bytes that have to look at it."""
    made = (await client.post("/v1/conversations", json={})).json()
    if "id" not in made:
        return
    item = json.dumps({"items": [{"role": "user", "content": _TEXT}]}).encode()
    for _ in range(12):
        await _post(client, f"/v1/conversations/{made['id']}/items", item)
    body = {"model": model, "input": "hi", "conversation": made["id"], "max_output_tokens": 8}
    for _ in range(20):
        await client.post("/v1/responses", json={**body, "truncation": "auto"})


@cache
def _about(model: str, kind: str, data: bytes, files: int) -> bytes:
    file = {"file_data": f"data:{kind};base64,{b64encode(data).decode()}"}
    message = {"role": "user", "content": [{"type": "file", "file": file}] * files}
    return json.dumps({"model": model, "messages": [message], "max_tokens": 8}).encode()


_bomb = cache(pdf_bomb)


async def _pdfs(client: httpx.AsyncClient, model: str) -> None:
    await _post(client, "/v1/chat/completions", _about(model, "application/pdf", _bomb(24 << 20), 1))


async def _tables(client: httpx.AsyncClient, model: str) -> None:
    await _post(client, "/v1/chat/completions", _about(model, "text/csv", b'a;"b";c\n' * 4_000, 20))


@cache
def _quotes() -> bytes:
    return b'"' * 1_000_000


async def _cached_quotes(client: httpx.AsyncClient, model: str) -> None:
    headers = {**_JSON, "cache-control": "max-age=1"}
    await client.post("/v1/chat/completions", content=_quotes(), headers=headers)


async def _slow_uploads(client: httpx.AsyncClient, model: str) -> None:
    async def drip() -> AsyncIterator[bytes]:
        for _ in range(1_000):
            yield b"-" * (8 << 10)
            await asyncio.sleep(0.25)

    kind = {"content-type": "multipart/form-data; boundary=x"}
    await client.post("/v1/files", content=drip(), headers=kind)


async def _guides(client: httpx.AsyncClient, model: str) -> None:
    multiple = {"type": "integer", "multipleOf": random.randrange(30_011, 120_000, 2)}
    schema = {"type": "object", "properties": {"a": multiple}, "required": ["a"]}
    given = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    message = {"role": "user", "content": "A number."}
    body = {"model": model, "messages": [message], "max_tokens": 8, "response_format": given}
    await client.post("/v1/chat/completions", json=body)


ATTACKS = (
    Attack(
        "1 MB responses, by a tenant without requests",
        _long_responses,
        4,
        Limits(requests_per_min=0),
        health_goal_ms=HEALTH_GOAL_MS,
    ),
    Attack("1 MB responses", _long_responses, 4, health_goal_ms=HEALTH_GOAL_MS),
    Attack(
        "1 MB of quotes, to be answered from the cache",
        _cached_quotes,
        2,
        Limits(answers_cached_s=60),
        health_goal_ms=HEALTH_GOAL_MS,
        first_token_goal=FIRST_TOKEN_GOAL,
    ),
    Attack("a conversation of 12 MB", _long_history, 2, health_goal_ms=HEALTH_GOAL_MS),
    Attack("64 uploads that drip", _slow_uploads, 64, first_token_goal=FIRST_TOKEN_GOAL),
    Attack("18 PDFs at once", _pdfs, 18, first_token_goal=FIRST_TOKEN_GOAL),
    Attack("20 tables a request", _tables, 4, first_token_goal=FIRST_TOKEN_GOAL),
    Attack("8 guides of multiples at once", _guides, 8, rest_s=3.0, first_token_goal=FIRST_TOKEN_GOAL),
)


def _take_leftovers() -> None:
    """A client is on another machine, and takes nothing of this one: it runs when nobody else wants to."""
    os.setsid()
    os.nice(19)
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError), open("/proc/self/autogroup", "w") as session:
        session.write("19")


def _attack(attack: Attack, url: str, key: str, model: str, go: Event, end: Event) -> None:
    _take_leftovers()

    async def keep_sending(client: httpx.AsyncClient) -> None:
        while not end.is_set():
            if not go.is_set():
                await asyncio.sleep(0.02)
                continue
            with suppress(httpx.HTTPError):
                await _until_rest(attack.send(client, model), go)

    async def send() -> None:
        async with _client(url, key) as client:
            await asyncio.gather(*(keep_sending(client) for _ in range(attack.at_once)))

    asyncio.run(send())


async def _until_rest(sending: Awaitable[None], go: Event) -> None:
    """Whoever attacks for a round leaves at its end."""
    task = asyncio.ensure_future(sending)
    while not task.done() and go.is_set():
        await asyncio.wait([task], timeout=0.05)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error


# What the others see


async def _watch(url: str, key: str, model: str, seen: Seen, round_s: float = _ROUND_S) -> None:
    health: list[float] = []
    first_token: list[float] = []
    async with _client(url, key) as client:
        end_s = time.monotonic() + round_s
        await asyncio.gather(_probe_health(client, end_s, health), _stream(client, model, end_s, first_token))
    seen.health.append(health)
    seen.first_token.append(first_token)


async def _probe_health(client: httpx.AsyncClient, end_s: float, seen: list[float]) -> None:
    """By a schedule, whether the one before was answered or not."""

    async def probe() -> None:
        began_s = time.monotonic()
        with suppress(httpx.TimeoutException):
            await client.get("/health/live")
        seen.append((time.monotonic() - began_s) * 1e3)

    probes = []
    while time.monotonic() < end_s:
        probes.append(asyncio.create_task(probe()))
        await asyncio.sleep(_PROBE_S)
    await asyncio.gather(*probes)


async def _stream(client: httpx.AsyncClient, model: str, end_s: float, seen: list[float]) -> None:
    message = {"role": "user", "content": "Say hello."}
    body = {"model": model, "messages": [message], "max_tokens": 4, "stream": True}
    while time.monotonic() < end_s:
        began_s = time.monotonic()
        with suppress(httpx.TimeoutException):
            async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                async for line in answer.aiter_lines():
                    if '"content":"' in line and '"content":""' not in line:
                        break
        # One that never came has taken this long.
        seen.append((time.monotonic() - began_s) * 1e3)
        await asyncio.sleep(_PAUSE_S)


# Rounds


def _new_key(admin: Administration, name: str, limits: Limits) -> str:
    tenant = admin.create_organisation(SYSTEM, name)
    admin.set_limits(SYSTEM, tenant.id, limits)
    user = admin.create_user(SYSTEM, tenant.id, "user", Role.MEMBER)
    return admin.create_key(SYSTEM, tenant.id, user.id, "key", DEFAULT_SCOPES)[1]


@contextmanager
def _attacker(attack: Attack, stack: RunningStack, key: str) -> Iterator[Event]:
    context = multiprocessing.get_context("spawn")
    go, end = context.Event(), context.Event()
    process = context.Process(target=_attack, args=(attack, stack.url, key, stack.model, go, end))
    process.start()
    try:
        yield go
    finally:
        end.set()
        process.join(_TIMEOUT_S)
        process.kill()


def measure(stack: RunningStack, attack: Attack, keys: tuple[str, str], rounds: int) -> Found:
    """Rounds alone and under the attack in turns; before the first, one that nobody counts."""
    alone, attacked = Seen(), Seen()
    with _attacker(attack, stack, keys[0]) as go:
        asyncio.run(_watch(stack.url, keys[1], stack.model, Seen(), round_s=1.0))
        for number in range(rounds):
            for seen in (alone, attacked) if number % 2 == 0 else (attacked, alone):
                if seen is attacked:
                    go.set()
                asyncio.run(_watch(stack.url, keys[1], stack.model, seen))
                go.clear()
                if seen is attacked:
                    time.sleep(attack.rest_s)
    return Found.of(attack, alone, attacked)


def main() -> None:
    parser = ArgumentParser(prog="python -m benchmarks.attacks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of each attack, and as many without")
    parser.add_argument("--only", default="", help="attacks whose name contains this")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    asked = parser.parse_args()
    found = []
    began_s = time.monotonic()
    is_met = asked.only not in held_interpreter.NAME or held_interpreter.report(Console(width=120))
    attacks = [each for each in ATTACKS if asked.only in each.name]
    if not attacks:
        sys.exit(0 if is_met else "a goal was missed")
    with running_stack(embeddings=False) as stack:
        for number, attack in enumerate(attacks):
            with open_administration(stack.state_dir) as admin:
                keys = (
                    _new_key(admin, f"attacker-{number}", attack.limits),
                    _new_key(admin, f"other-{number}", Limits()),
                )
            time.sleep(2)  # until the router knows them
            found.append(measure(stack, attack, keys, asked.rounds))
            print(*found[-1].row(), f"by round: {found[-1].ratios}", sep=" | ", flush=True)
    _report(found, time.monotonic() - began_s)
    if asked.json:
        asked.json.write_text(json.dumps([asdict(each) for each in found], indent=1))
    sys.exit(0 if is_met and all(each.is_met for each in found) else "a goal was missed")


def _report(found: list[Found], took_s: float) -> None:
    figures = ("health p99: alone → attacked", "goal", "first token p50", "ratio", "goal", "verdict")
    table = Table("one tenant sends", *figures, caption="all are medians over the rounds")
    for each in found:
        table.add_row(*each.row())
    console = Console(width=160)
    console.print(table)
    missed = [each.attack for each in found if not each.is_met]
    print(f"{len(found) - len(missed)} of {len(found)} met; missed: {', '.join(missed) or 'none'}")
    print(f"in {took_s:.0f} s, with a load of {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")


if __name__ == "__main__":
    main()
