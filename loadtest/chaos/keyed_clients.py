"""Clients that have a key for each request: whatever happens to their connection, they read on."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import aiohttp

from loadtest.replay.plan import PlannedRequest
from loadtest.replay.schedule import Act, keep_time
from loadtest.results import RequestResult

_PATH = "/v1/completions"
_PAUSE_S = 0.25
_BROKEN = (aiohttp.ClientError, asyncio.TimeoutError, ConnectionError)


class NotYet(Exception):
    """An answer that is none, or ended with an error; the request may be repeated."""


@dataclass(frozen=True)
class KeyedClients:
    """`urls` are of all routers; a client changes to the next one when its connection breaks."""

    urls: Sequence[str]
    model: str
    bearer: str = field(repr=False)
    name: str  # of this play: keys are not used twice
    gives_up_s: float

    async def play(self, plan: Sequence[PlannedRequest]) -> list[RequestResult]:
        results: list[RequestResult] = []
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=timeout) as session:

            def prepare(request: PlannedRequest) -> Act:
                return partial(self._insist, session, request, results)

            await keep_time(plan, prepare, time.perf_counter(), self.gives_up_s)
        return results

    async def _insist(
        self, session: aiohttp.ClientSession, request: PlannedRequest, results: list[RequestResult]
    ) -> None:
        result = RequestResult(
            request.kind, request.at_s, request.tenant, model=self.model, asked_tokens=request.max_tokens
        )
        reading = _Reading(result, time.perf_counter())
        body: dict[str, Any] = {"model": self.model, "prompt": request.prompt, "temperature": 0}
        body |= {"max_tokens": request.max_tokens, "ignore_eos": True, "stream": True}
        body["stream_options"] = {"include_usage": True}
        headers = {"authorization": f"Bearer {self.bearer}"}
        headers["idempotency-key"] = f"{self.name}-{request.at_s}"
        number = int(request.kind)
        try:
            while not reading.is_over:
                if reading.last:
                    headers["last-event-id"] = str(reading.last)
                url = self.urls[number % len(self.urls)] + _PATH
                try:
                    async with session.post(url, json=body, headers=headers) as response:
                        await reading.take_all(response)
                except (*_BROKEN, NotYet) as error:
                    result.error = f"{type(error).__name__}: {error}"[:300]
                    number += 1
                    await asyncio.sleep(_PAUSE_S)
        finally:  # whoever gives up has seen something too
            results.append(result)


class _Reading:
    """One answer over all its connections; `last` is the number of the last event."""

    def __init__(self, result: RequestResult, began_s: float) -> None:
        self._result = result
        self._began_s = began_s
        self._heard_s = began_s
        self.last = 0
        self.is_over = False

    async def take_all(self, response: aiohttp.ClientResponse) -> None:
        """Raises NotYet where that is not all of it."""
        if response.status != 200:
            raise NotYet(f"{response.status} {(await response.text())[:200]}")
        self._result.status = response.status
        number = 0
        async for line in response.content:
            if line.startswith(b"id: "):
                number = int(line[4:])
            elif line.startswith(b"data: "):
                self._take(number, line[6:].strip())
                number = 0
                if self.is_over:
                    return
        raise NotYet("the stream ended before its last event")

    def _take(self, number: int, data: bytes) -> None:
        if not number:  # only what cannot be continued has none
            raise NotYet(data.decode(errors="replace"))
        if number != self.last + 1:
            self._result.text += f"[{number} after {self.last}]"  # no text is like that
        self.last = number
        now_s, result = time.perf_counter(), self._result
        if data == b"[DONE]":
            self.is_over, result.ended_s, result.error = True, now_s - self._began_s, ""
            return
        event: dict[str, Any] = json.loads(data)
        result.request_id = event["id"]
        for choice in event["choices"]:
            if choice["text"]:
                self._hear(now_s)
                result.text += choice["text"]
        if event.get("usage"):
            result.completion_tokens = event["usage"]["completion_tokens"]

    def _hear(self, now_s: float) -> None:
        result = self._result
        result.pieces += 1
        if result.first_token_s is None:
            result.first_token_s = now_s - self._began_s
        else:
            result.longest_gap_s = max(result.longest_gap_s, now_s - self._heard_s)
        self._heard_s = now_s
