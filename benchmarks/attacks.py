"""What one tenant's attacks do to the others: python -m benchmarks.attacks, alone and under each attack.

A stack runs with two tenants. One sends what costs the router or the engine most for its size, from
processes of its own; meanwhile the health endpoint is asked twenty times a second, and the other tenant
streams short answers. Rounds alternate between the attack and none, so that a busy machine hurts both alike.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import time
from argparse import ArgumentParser
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.stack import RunningStack, running_stack
from loadtest.percentiles import percentile
from router.core.tenant import Limits, Role
from router.tenants.administration import DEFAULT_SCOPES, Administration
from router.tenants.rbac import SYSTEM
from router.tenants.tenancy import open_administration
from tests.router.content.documents.pdf_files import pdf_bomb

_ROUND_S = 8.0
_PROBE_S = 0.05
_TIMEOUT_S = 60.0
_TEXT = "The quick brown fox jumps over the lazy dog 12345 times. " * 17_500  # not quite 1 MB

Send = Callable[[httpx.AsyncClient, str], Awaitable[None]]


@dataclass(frozen=True)
class Attack:
    name: str
    send: Send
    at_once: int
    limits: Limits = field(default_factory=Limits)


@dataclass
class Seen:
    """What the others saw, in milliseconds."""

    health: list[float] = field(default_factory=list)
    first_token: list[float] = field(default_factory=list)


def _client(url: str, key: str) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=_TIMEOUT_S, trust_env=False)


# What an attacker sends


async def _long_responses(client: httpx.AsyncClient, model: str) -> None:
    body = {"model": model, "input": _TEXT, "truncation": "auto", "max_output_tokens": 8}
    await client.post("/v1/responses", json=body)


async def _long_history(client: httpx.AsyncClient, model: str) -> None:
    """A conversation of 12 MB, then requests of a few bytes that have to look at it."""
    made = (await client.post("/v1/conversations", json={})).json()
    if "id" not in made:
        return
    item = {"role": "user", "content": _TEXT}
    for _ in range(12):
        await client.post(f"/v1/conversations/{made['id']}/items", json={"items": [item]})
    body = {"model": model, "input": "hi", "conversation": made["id"], "max_output_tokens": 8}
    for _ in range(20):
        await client.post("/v1/responses", json={**body, "truncation": "auto"})


async def _pdfs(client: httpx.AsyncClient, model: str) -> None:
    await _ask_about(client, model, [("application/pdf", pdf_bomb(24 << 20))])


async def _tables(client: httpx.AsyncClient, model: str) -> None:
    table = b'a;"b";c\n' * 4_000
    await _ask_about(client, model, [("text/csv", table)] * 20)


async def _ask_about(client: httpx.AsyncClient, model: str, files: list[tuple[str, bytes]]) -> None:
    parts = [
        {"type": "file", "file": {"file_data": f"data:{kind};base64,{b64encode(data).decode()}"}}
        for kind, data in files
    ]
    message = {"role": "user", "content": parts}
    await client.post("/v1/chat/completions", json={"model": model, "messages": [message], "max_tokens": 8})


async def _guides(client: httpx.AsyncClient, model: str) -> None:
    multiple = {"type": "integer", "multipleOf": random.randrange(30_011, 120_000, 2)}
    schema = {"type": "object", "properties": {"a": multiple}, "required": ["a"]}
    given = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    message = {"role": "user", "content": "A number."}
    body = {"model": model, "messages": [message], "max_tokens": 8, "response_format": given}
    await client.post("/v1/chat/completions", json=body)


ATTACKS = (
    Attack("1 MB responses, by a tenant without requests", _long_responses, 4, Limits(requests_per_min=0)),
    Attack("1 MB responses", _long_responses, 4),
    Attack("a conversation of 12 MB", _long_history, 2),
    Attack("18 PDFs at once", _pdfs, 18),
    Attack("20 tables a request", _tables, 4),
    Attack("8 guides of multiples at once", _guides, 8),
)


def _attack(attack: Attack, url: str, key: str, model: str, go: Event, end: Event) -> None:
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


async def _watch(url: str, key: str, model: str, seen: Seen) -> None:
    async with _client(url, key) as client:
        end_s = time.monotonic() + _ROUND_S
        await asyncio.gather(_probe_health(client, end_s, seen), _stream(client, model, end_s, seen))


async def _probe_health(client: httpx.AsyncClient, end_s: float, seen: Seen) -> None:
    """By a schedule, whether the one before was answered or not."""

    async def probe() -> None:
        began_s = time.monotonic()
        with suppress(httpx.TimeoutException):
            await client.get("/health/live")
        seen.health.append((time.monotonic() - began_s) * 1e3)

    probes = []
    while time.monotonic() < end_s:
        probes.append(asyncio.create_task(probe()))
        await asyncio.sleep(_PROBE_S)
    await asyncio.gather(*probes)


async def _stream(client: httpx.AsyncClient, model: str, end_s: float, seen: Seen) -> None:
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
        seen.first_token.append((time.monotonic() - began_s) * 1e3)
        await asyncio.sleep(0.05)


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


def measure(stack: RunningStack, attack: Attack, keys: tuple[str, str], rounds: int) -> tuple[Seen, Seen]:
    """Alone, and under the attack."""
    alone, attacked = Seen(), Seen()
    with _attacker(attack, stack, keys[0]) as go:
        for _ in range(rounds):
            asyncio.run(_watch(stack.url, keys[1], stack.model, alone))
            go.set()
            asyncio.run(_watch(stack.url, keys[1], stack.model, attacked))
            go.clear()
            time.sleep(0.5)  # it leaves
    return alone, attacked


def _row(attack: Attack, alone: Seen, attacked: Seen) -> dict[str, Any]:
    first, first_attacked = (percentile(sorted(each.first_token), 0.5) for each in (alone, attacked))
    p99s = [percentile(sorted(each.health), 0.99) for each in (alone, attacked)]
    return {
        "attack": attack.name,
        "health_p99_ms": [round(each, 1) for each in p99s],
        "health_max_ms": [round(max(alone.health), 1), round(max(attacked.health), 1)],
        "first_token_p50_ms": [round(first, 1), round(first_attacked, 1)],
        "first_token_ratio": round(first_attacked / first, 2),
    }


def main() -> None:
    parser = ArgumentParser(prog="python -m benchmarks.attacks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of each attack, and as many without")
    parser.add_argument("--only", default="", help="attacks whose name has this in it")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    asked = parser.parse_args()
    table = Table("attack", "health p99, ms", "health max, ms", "first token p50, ms", "ratio")
    found = []
    with running_stack(embeddings=False) as stack:
        for number, attack in enumerate(each for each in ATTACKS if asked.only in each.name):
            with open_administration(stack.state_dir) as admin:
                keys = (
                    _new_key(admin, f"attacker-{number}", attack.limits),
                    _new_key(admin, f"other-{number}", Limits()),
                )
            time.sleep(2)  # until the router knows them
            row = _row(attack, *measure(stack, attack, keys, asked.rounds))
            found.append(row)
            print(json.dumps(row), flush=True)
            pairs = [" → ".join(map(str, values)) for values in row.values() if isinstance(values, list)]
            table.add_row(attack.name, *pairs, str(row["first_token_ratio"]))
    Console(width=140).print(table)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
