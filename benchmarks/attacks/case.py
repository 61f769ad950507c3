"""A case: what an attacker sends, and the honest requests that a neighbour's tokens are compared under."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache

import httpx

GOAL = 1.5
_JSON = {"content-type": "application/json"}


@dataclass(frozen=True)
class Sender:
    """Sends one side of a case; `keys` are those that the router made, by what they may."""

    http: httpx.AsyncClient
    keys: Mapping[str, str]
    port: int
    prepared: str = ""

    def headers(self, key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.keys[key]}"} if key else {}


# What one request does, given its number.
Send = Callable[[Sender, int], Awaitable[None]]


@dataclass(frozen=True)
class Case:
    """Both sides send as many requests, at the same moments. `prepare` is called once, before any round, and
    what it returns is `Sender.prepared`. At most `at_once` requests are under way."""

    name: str
    attack: Send
    honest: Send
    per_s: float
    prepare: Callable[[Sender], Awaitable[str]] | None = None
    at_once: int = 64
    goal: float = GOAL


def post(
    path: str, body: Callable[[], bytes], key: str = "tenant", headers: Mapping[str, str] | None = None
) -> Send:
    """A request with a body that is made once, so that making it is in nobody's way."""
    made = cache(body)

    async def send(sender: Sender, number: int) -> None:
        all_headers = {**_JSON, **sender.headers(key), **(headers or {})}
        await sender.http.post(path, content=made(), headers=all_headers)

    return send


def get(path: str, key: str = "tenant") -> Send:
    async def send(sender: Sender, number: int) -> None:
        await sender.http.get(path, headers=sender.headers(key))

    return send


def bytes_held(data: bytes, held_s: float) -> Send:
    """A connection of its own that says this and then nothing more."""

    async def send(sender: Sender, number: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", sender.port)
        try:
            writer.write(data)
            await asyncio.sleep(held_s)
        finally:
            writer.close()

    return send
