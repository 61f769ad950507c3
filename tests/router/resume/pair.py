"""Two routers and a real Redis, and a client whose stream the first one began."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from redis import Redis

from router.control.peers.shared_events import SharedEventLog
from router.http import sse
from tests.fakes.pipeline import words
from tests.router.running import MODEL, QUESTION, RunningRouter

KEY = {"idempotency-key": "one"}
STREAMS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": MODEL, "messages": QUESTION, "stream": True, "n": 2},
    "/v1/completions": {"model": MODEL, "prompt": "hi", "stream": True, "stop": "never"},
    "/v1/responses": {"model": MODEL, "input": "hi", "stream": True},
    "/v1/messages": {"model": MODEL, "messages": QUESTION, "max_tokens": 9, "stream": True},
}
CHAT = "/v1/chat/completions"
TEXTS = ("He", "llo ", "wo", "rld", ", and ", "more", "!")


@dataclass
class Pair:
    """Of routers; the first `dies`, which the second hears of as it would in a deployment."""

    first: RunningRouter
    second: RunningRouter
    client: Redis
    logs: Sequence[SharedEventLog]  # theirs, in this order

    def lives(self, name: str) -> None:
        self.client.set(f"inflight:test:{name}", b"")

    def dies(self, name: str = "first") -> None:
        self.client.delete(f"inflight:test:{name}")

    async def begin(self, path: str, events: int = 1, **more: object) -> bytes:
        """By the first router, read until there are so many events, then cut."""
        http, body = self.first.http, {**STREAMS[path], **more}
        async with http.stream("POST", path, json=body, headers=KEY) as response:
            seen = b""
            async for some in response.aiter_raw():
                seen += some
                if len(sse.split(seen)) >= events:
                    return seen
        raise AssertionError(seen)

    async def again(self, path: str, at: int = 0, **more: object) -> httpx.Response:
        headers = {**KEY, "last-event-id": str(at)}
        return await self.second.http.post(path, json={**STREAMS[path], **more}, headers=headers)

    async def billed(self) -> tuple[int, int]:
        """Requests and completion tokens, by both."""
        await self.first.usage("local")
        (used,) = await self.second.usage("local")
        return used.requests, used.completion_tokens


def hold(router: RunningRouter, *texts: str) -> asyncio.Event:
    """Until it is set, an answer has come to the end of these words, and each choice of it."""
    event = asyncio.Event()
    router.pipeline.script = lambda call: [*words(*texts)[:-1], event, *words(*TEXTS[len(texts) :])]
    return event
