"""Sends a plan on time, whatever became of the earlier requests, and notes what each one saw.

Latency counts from the planned moment. Several processes share the plan, so that none of them is what is
measured.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import aiohttp

from loadtest.traces import TracedRequest
from python_backend.wire.tiers import Tier

_SERVICE_TIERS = {
    Tier.INTERACTIVE.label: "priority",
    Tier.STANDARD.label: "default",
    Tier.BATCH.label: "flex",
}
# As the router puts it to those whose turn did not come in time.
_WAITED_IN_VAIN = "in time"
_LEAD_S = 1.5
_FIRST_ID, _LAST_ID = 1000, 40_000


@dataclass(slots=True)
class Outcome:
    """One attempt of one request; seconds since it was to be sent, `at_s` since all began."""

    request: TracedRequest
    at_s: float
    attempt: int = 0
    status: int = 0
    retry_after_s: float | None = None
    first_token_s: float | None = None
    ended_s: float | None = None
    tokens: int = 0
    last_token_s: float | None = None
    error: str = ""

    @property
    def is_refused(self) -> bool:
        return self.status == 503 and self.retry_after_s is not None

    @property
    def has_left(self) -> bool:
        """It gave up, whatever would have become of it."""
        return self.ended_s is None and not self.error

    @property
    def is_refused_late(self) -> bool:
        """It was let wait, and then its time was over."""
        return self.is_refused and _WAITED_IN_VAIN in self.error

    @property
    def between_tokens_s(self) -> float | None:
        """On average over the answer."""
        if self.first_token_s is None or self.last_token_s is None or self.tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.tokens - 1)


@dataclass(frozen=True)
class Target:
    """Where to, and how: `retries` is how often whoever is refused comes back at once, unasked.

    At `gives_up_s` everybody leaves who is still waiting: what takes a policy minutes is not waited for.
    """

    url: str
    model: str
    keys: Mapping[str, str]
    tells_tier: bool = True
    retries: int = 0
    gives_up_s: float = 3600.0


def send(target: Target, plan: Sequence[TracedRequest], clients: int = 1) -> list[Outcome]:
    start_at_s = time.time() + _LEAD_S
    shares = [plan[number::clients] for number in range(clients)]
    if clients == 1:
        return _client(target, plan, start_at_s, 0)
    # Not forked: what measures a stack may have threads.
    with ProcessPoolExecutor(clients, get_context("spawn")) as pool:
        parts = [pool.submit(_client, target, share, start_at_s, seed) for seed, share in enumerate(shares)]
        return [outcome for part in parts for outcome in part.result()]


def _client(target: Target, plan: Sequence[TracedRequest], start_at_s: float, seed: int) -> list[Outcome]:
    return asyncio.run(_send_all(target, plan, start_at_s, seed))


async def _send_all(
    target: Target, plan: Sequence[TracedRequest], start_at_s: float, seed: int
) -> list[Outcome]:
    chance = random.Random(seed)
    outcomes: list[Outcome] = []
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(target.url, connector=connector, timeout=timeout) as session:
        start_s = time.perf_counter() + start_at_s - time.time()
        under_way = []
        for request in plan:
            await asyncio.sleep(max(0.0, start_s + request.at_s - time.perf_counter()))
            body = _body(target, request, chance)
            under_way.append(asyncio.create_task(_insist(session, target, request, body, start_s, outcomes)))
        left_s = start_s + target.gives_up_s - time.perf_counter()
        _, late = await asyncio.wait(under_way, timeout=max(0.0, left_s))
        for task in late:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
    return outcomes


def _body(target: Target, request: TracedRequest, chance: random.Random) -> bytes:
    """Nothing that was cached before, and an answer of exactly that length."""
    prompt = [chance.randrange(_FIRST_ID, _LAST_ID) for _ in range(request.prompt_tokens)]
    body = {
        "model": target.model,
        "prompt": prompt,
        "max_tokens": request.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if target.tells_tier:
        body["service_tier"] = _SERVICE_TIERS[request.tier or Tier.STANDARD.label]
    return json.dumps(body).encode()


async def _insist(
    session: aiohttp.ClientSession,
    target: Target,
    request: TracedRequest,
    body: bytes,
    start_s: float,
    outcomes: list[Outcome],
) -> None:
    for attempt in range(target.retries + 1):
        begin_s = start_s + request.at_s if attempt == 0 else time.perf_counter()
        outcome = Outcome(request, begin_s - start_s, attempt)
        outcomes.append(outcome)
        try:
            await _ask(session, target, body, outcome, begin_s)
        except (aiohttp.ClientError, ValueError, KeyError, OSError) as error:
            outcome.error = f"{type(error).__name__}: {error}"
        if not outcome.is_refused:
            return


async def _ask(
    session: aiohttp.ClientSession, target: Target, body: bytes, outcome: Outcome, begin_s: float
) -> None:
    headers = {"content-type": "application/json"}
    if key := target.keys.get(outcome.request.tenant):
        headers["authorization"] = f"Bearer {key}"
    async with session.post("/v1/completions", data=body, headers=headers) as response:
        outcome.status = response.status
        if response.status != 200:
            outcome.ended_s = time.perf_counter() - begin_s
            if "retry-after" in response.headers:
                exact_ms = response.headers.get("retry-after-ms")
                told_s = float(response.headers["retry-after"])
                outcome.retry_after_s = told_s if exact_ms is None else float(exact_ms) / 1000
            outcome.error = (await response.text())[:300]
            return
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                outcome.error = json.dumps(event["error"])[:300]
                return
            now_s = time.perf_counter() - begin_s
            if event["choices"] and event["choices"][0]["text"]:
                if outcome.first_token_s is None:
                    outcome.first_token_s = now_s
                outcome.last_token_s = now_s
            if event.get("usage"):
                outcome.tokens = event["usage"]["completion_tokens"]
        outcome.ended_s = time.perf_counter() - begin_s
