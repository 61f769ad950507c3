"""Sends requests at their planned times, whatever became of the earlier ones, and notes what came back.

Latency counts from the planned time. A client that waits for an answer before it asks again measures a slow
server kindly; users do not wait for one another.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    at_s: float
    prompt: str
    max_tokens: int
    label: str


@dataclass(slots=True)
class Outcome:
    """One request's life, in seconds from its planned time."""

    request: PlannedRequest
    first_token_s: float | None = None
    ended_s: float | None = None
    tokens: int = 0
    error: str | None = None
    text: list[str] = field(default_factory=list)
    longest_silence_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadResult:
    outcomes: list[Outcome]
    duration_s: float

    @property
    def tokens(self) -> int:
        return sum(outcome.tokens for outcome in self.outcomes)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.duration_s

    @property
    def chunks(self) -> int:
        return sum(len(outcome.text) for outcome in self.outcomes)

    @property
    def errors(self) -> list[str]:
        return [outcome.error for outcome in self.outcomes if outcome.error]

    def latencies_s(self, label: str) -> list[float]:
        return sorted(
            outcome.ended_s
            for outcome in self.outcomes
            if outcome.request.label == label and outcome.ended_s is not None
        )


def percentile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank percentile of values in ascending order; nan when there are none."""
    if not ordered:
        return float("nan")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


async def run_plan(url: str, model: str, plan: Sequence[PlannedRequest]) -> LoadResult:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(url, connector=connector, timeout=timeout) as session:
        start_s = time.perf_counter()
        outcomes = await asyncio.gather(*(_run(session, model, request, start_s) for request in plan))
        return LoadResult(list(outcomes), time.perf_counter() - start_s)


async def _run(
    session: aiohttp.ClientSession, model: str, request: PlannedRequest, start_s: float
) -> Outcome:
    outcome = Outcome(request)
    planned_s = start_s + request.at_s
    await asyncio.sleep(max(0.0, planned_s - time.perf_counter()))
    try:
        await _stream(session, model, outcome, planned_s)
    except (aiohttp.ClientError, ValueError, KeyError) as error:
        outcome.error = f"{type(error).__name__}: {error}"
    return outcome


async def _stream(session: aiohttp.ClientSession, model: str, outcome: Outcome, planned_s: float) -> None:
    """One completion as a stream; end tokens are ignored, so that lengths are those of the plan."""
    body = {
        "model": model,
        "prompt": outcome.request.prompt,
        "max_tokens": outcome.request.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with session.post("/v1/completions", json=body) as response:
        if response.status != 200:
            outcome.error = f"HTTP {response.status}: {await response.text()}"
            return
        latest_s = planned_s
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise ValueError(event["error"]["message"])
            now_s = time.perf_counter()
            if event["choices"] and event["choices"][0]["text"]:
                if outcome.first_token_s is None:
                    outcome.first_token_s = now_s - planned_s
                else:
                    outcome.longest_silence_s = max(outcome.longest_silence_s, now_s - latest_s)
                latest_s = now_s
                outcome.text.append(event["choices"][0]["text"])
            if event.get("usage"):
                outcome.tokens = event["usage"]["completion_tokens"]
        outcome.ended_s = time.perf_counter() - planned_s
