"""Sends a plan on time, whatever became of the earlier requests, and notes what each one saw.

Latency counts from the planned moment. A client that waits for an answer before it asks again measures a slow
server kindly; users do not wait for one another.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import aiohttp

from loadtest.replay.plan import PlannedRequest
from loadtest.replay.schedule import Act, keep_time
from loadtest.results import RequestResult

SERVICE_TIERS = {"interactive": "priority", "standard": "default", "batch": "flex"}
EVERYBODY = "*"  # whose key is taken for tenants without one
_ERROR_CHARACTERS = 300

Told = Callable[[RequestResult], None]


@dataclass(frozen=True)
class Target:
    """Where to, and how: `retries` is how often whoever is refused comes back.

    Who `honours_retry_after` waits as it is told to, the others come back at once. At `gives_up_s` everybody
    leaves who is still waiting: what takes minutes is not waited for.
    """

    url: str
    model: str
    keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    tells_tier: bool = True
    retries: int = 0
    honours_retry_after: bool = False
    gives_up_s: float = 3600.0
    keeps_text: bool = False

    def key_of(self, tenant: str) -> str | None:
        return self.keys.get(tenant, self.keys.get(EVERYBODY))


@dataclass(frozen=True)
class SendResult:
    """What came of a plan; attempts in the order in which they ended."""

    results: list[RequestResult]
    duration_s: float
    is_interrupted: bool = False

    @property
    def tokens(self) -> int:
        return sum(each.completion_tokens for each in self.results)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.duration_s

    @property
    def pieces(self) -> int:
        return sum(each.pieces for each in self.results)

    @property
    def errors(self) -> list[str]:
        return [each.error for each in self.results if each.error]

    def latencies_s(self, kind: str) -> list[float]:
        """Of those that were answered, in ascending order."""
        return sorted(
            each.ended_s
            for each in self.results
            if each.kind == kind and not each.error and each.ended_s is not None
        )


async def send(target: Target, plan: Sequence[PlannedRequest]) -> SendResult:
    """From this process, beginning now."""
    results: list[RequestResult] = []
    start_s = time.perf_counter()
    await play(target, plan, start_s, results.append)
    return SendResult(results, time.perf_counter() - start_s)


async def play(target: Target, plan: Sequence[PlannedRequest], start_s: float, told: Told) -> None:
    """From `start_s` on the clock of `time.perf_counter`; when this is cancelled, all leave."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(target.url, connector=connector, timeout=timeout) as session:
        sender = _Sender(session, target, start_s, told)
        await keep_time(plan, sender.prepare, start_s, target.gives_up_s)


def _body(target: Target, request: PlannedRequest) -> bytes:
    """End tokens are ignored, so that lengths are those of the plan."""
    prompt = request.prompt if isinstance(request.prompt, str) else request.prompt.token_ids()
    body = {
        "model": target.model,
        "prompt": prompt,
        "max_tokens": request.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **(request.extras or {}),
    }
    if target.tells_tier:
        body["service_tier"] = SERVICE_TIERS[request.tier]
    return json.dumps(body).encode()


@dataclass(frozen=True)
class _Sender:
    session: aiohttp.ClientSession
    target: Target
    start_s: float
    told: Told

    def prepare(self, request: PlannedRequest) -> Act:
        """Long prompts take a while to make."""
        return partial(self._insist, request, _body(self.target, request))

    async def _insist(self, request: PlannedRequest, body: bytes) -> None:
        begin_s = self.start_s + request.at_s
        for attempt in range(self.target.retries + 1):
            result = RequestResult(
                request.kind,
                begin_s - self.start_s,
                request.tenant,
                request.tier,
                self.target.model,
                prompt_tokens=request.prompt_tokens,
                asked_tokens=request.max_tokens,
                attempt=attempt,
            )
            await self._ask(body, result, begin_s)
            if not result.is_refused:
                return
            if self.target.honours_retry_after:
                await asyncio.sleep(result.retry_after_s or 0.0)
            begin_s = time.perf_counter()

    async def _ask(self, body: bytes, result: RequestResult, begin_s: float) -> None:
        reading = _AnswerReader(result, begin_s, self.target.keeps_text)
        headers = {"content-type": "application/json"}
        if key := self.target.key_of(result.tenant):
            headers["authorization"] = f"Bearer {key}"
        result.sent_s = time.perf_counter() - begin_s
        try:
            async with self.session.post("/v1/completions", data=body, headers=headers) as response:
                await reading.answer(response)
        except (aiohttp.ClientError, asyncio.TimeoutError, ValueError, LookupError, OSError) as error:
            result.error = f"{type(error).__name__}: {error}"[:_ERROR_CHARACTERS]
        finally:  # whoever leaves has seen something too
            reading.close()
            self.told(result)


class _AnswerReader:
    """One answer as it comes in."""

    def __init__(self, result: RequestResult, begin_s: float, keeps_text: bool) -> None:
        self._result = result
        self._begin_s = begin_s
        self._keeps_text = keeps_text
        self._moments_s: list[float] = []

    async def answer(self, response: aiohttp.ClientResponse) -> None:
        self._result.status = response.status
        self._result.request_id = response.headers.get("x-request-id", "")
        self._result.release = response.headers.get("x-inflight-release", "")
        if response.status != 200:
            self._result.ended_s = time.perf_counter() - self._begin_s
            self._result.retry_after_s = retry_after_s(response.headers)
            text = await response.text()
            self._result.error = (text or f"HTTP {response.status}")[:_ERROR_CHARACTERS]
            return
        async for line in response.content:
            if line.startswith(b"data: {") and not self._take(json.loads(line[6:])):
                return
        self._result.ended_s = time.perf_counter() - self._begin_s

    def _take(self, event: dict[str, object]) -> bool:
        """False when the stream told of its own end by an error."""
        if "error" in event:
            self._result.error = json.dumps(event["error"])[:_ERROR_CHARACTERS]
            return False
        match event:
            case {"choices": [{"text": str(text)}, *_]} if text:
                self._moments_s.append(time.perf_counter() - self._begin_s)
                if self._keeps_text:
                    self._result.text += text
        match event:
            case {"usage": {"completion_tokens": int(completion), **rest}}:
                self._result.completion_tokens = completion
                if isinstance(prompt := rest.get("prompt_tokens"), int):
                    self._result.prompt_tokens = prompt
        match event:
            case {"usage": {"prompt_tokens_details": {"cached_tokens": int(cached)}}}:
                self._result.cached_tokens = cached
        return True

    def close(self) -> None:
        """The pieces' moments made into gaps; without a count each piece is taken for a token."""
        moments_s, result = self._moments_s, self._result
        result.pieces = len(moments_s)
        if not moments_s:
            return
        result.first_token_s = moments_s[0]
        result.completion_tokens = result.completion_tokens or len(moments_s)
        gaps_s = [later - earlier for earlier, later in pairwise(moments_s)]
        if gaps_s and result.completion_tokens > 1:
            tokens_a_piece = (result.completion_tokens - 1) / len(gaps_s)
            result.longest_gap_s = max(gaps_s)
            result.gaps_s = [gap_s / tokens_a_piece for gap_s in gaps_s]


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """As exactly as it is told; None where it is not, or not as a number."""
    try:
        if "retry-after-ms" in headers:
            return float(headers["retry-after-ms"]) / 1000
        return float(headers["retry-after"])
    except (KeyError, ValueError):
        return None
