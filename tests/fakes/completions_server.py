"""A server of completions whose delays are known; what a prompt says is what becomes of it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.pace import patience

BUSY, BREAK, VANISH, SILENT = "busy", "break", "vanish", "silent"


@dataclass
class CompletionsServer:
    """Two tokens a piece, the first after `first_s`, the others `gap_s` apart.

    `one_at_a_time`: the others wait; nobody is answered before `stalls_until` have asked.
    The first `busy_times` that say BUSY are refused.
    """

    first_s: float = 0.02
    gap_s: float = 0.01
    one_at_a_time: bool = False
    stalls_until: int = 0
    busy_times: int = 1
    context_tokens: int | None = None
    path: str = "/v1/completions"
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    url: str = ""

    def __post_init__(self) -> None:
        self._turn = asyncio.Lock()
        self.asked = asyncio.Event()
        self._all_asked = asyncio.Event()

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.asked.set()
        if len(self.bodies) >= self.stalls_until:
            self._all_asked.set()
        self.keys.append(request.headers.get("authorization", ""))
        if body["prompt"] == BUSY and sum(each["prompt"] == BUSY for each in self.bodies) <= self.busy_times:
            headers = {"retry-after": "1", "retry-after-ms": "50"}
            return web.json_response({"error": {"message": "full"}}, status=503, headers=headers)
        await self._all_asked.wait()
        if self.one_at_a_time:
            async with self._turn:
                return await self._stream(request, body)
        return await self._stream(request, body)

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        headers = {"content-type": "text/event-stream", "x-request-id": f"r{len(self.bodies)}"}
        response = web.StreamResponse(headers={**headers, "x-inflight-release": "1"})
        await response.prepare(request)
        if body["prompt"] == SILENT:
            await asyncio.sleep(60)
        for number in range(0, body["max_tokens"], 2):
            await asyncio.sleep(self.gap_s if number else self.first_s)
            await _say(response, {"choices": [{"text": "ab"}]})
            if body["prompt"] == BREAK:
                await _say(response, {"error": {"message": "broken"}})
                return response
            if body["prompt"] == VANISH:
                assert request.transport is not None
                request.transport.abort()
                return response
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
        usage |= {"prompt_tokens_details": {"cached_tokens": 2}}
        await _say(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def models(self, _: web.Request) -> web.Response:
        model: dict[str, Any] = {"id": "tiny", "object": "model"}
        if self.context_tokens is not None:
            model["max_model_len"] = self.context_tokens
        return web.json_response({"object": "list", "data": [model]})


async def _say(response: web.StreamResponse, event: dict[str, Any]) -> None:
    await response.write(f"data: {json.dumps(event)}\n\n".encode())


@asynccontextmanager
async def serving(server: CompletionsServer) -> AsyncIterator[CompletionsServer]:
    app = web.Application()
    app.router.add_post(server.path, server.complete)
    app.router.add_get("/v1/models", server.models)
    async with TestServer(app) as running:
        server.url = str(running.make_url("/"))
        yield server


@contextmanager
def serving_aside(server: CompletionsServer) -> Iterator[CompletionsServer]:
    """In a thread, for those who have no event loop or keep it busy."""
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with serving(server):
            ready.set()
            await asyncio.to_thread(over.wait, 60)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(patience(10))
        yield server
    finally:
        over.set()
        thread.join(patience(10))
