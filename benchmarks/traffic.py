"""Traffic that goes on while something else is done to the stack, and what became of each request of it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

_TIMEOUT_S = 120.0
COMPLETIONS = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Answered:
    """One request; times in seconds, `at_s` since the traffic began."""

    at_s: float
    release: str
    error: str | None
    first_token_s: float | None = None
    between_tokens_s: float | None = None
    took_s: float = 0.0
    text: str = ""


@dataclass(slots=True)
class Traffic:
    """`began_s` is on the wall clock, as the times of the store are."""

    began_s: float
    answered: list[Answered] = field(default_factory=list)
    sent: int = 0

    @property
    def errors(self) -> list[str]:
        return [each.error for each in self.answered if each.error is not None]

    def of(self, release: str) -> list[Answered]:
        return [each for each in self.answered if each.release == release]

    def wait_for(self, requests: int, timeout_s: float = 60.0) -> None:
        """So many more answers than there are now."""
        wanted, deadline_s = len(self.answered) + requests, time.monotonic() + timeout_s
        while len(self.answered) < wanted:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{len(self.answered)} of {wanted} requests were answered")
            time.sleep(0.05)


Body = Callable[[int], dict[str, Any]]


def completion(model: str, max_tokens: int = 16) -> Body:
    """Another prompt each time, of about the same length."""

    def body(number: int) -> dict[str, Any]:
        prompt = f"Question {number}: what comes after {number % 97} and before {number % 89}?"
        return {
            "model": model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }

    return body


@contextmanager
def traffic(
    url: str,
    body: Body,
    per_s: float,
    headers: Callable[[int], dict[str, str]] | None = None,
    path: str = COMPLETIONS,
    most_in_flight: int | None = None,
) -> Iterator[Traffic]:
    """Sends streamed completions, or whatever else is asked at `path`, at a steady rate until the block ends,
    whatever became of the earlier ones; then waits for those in flight. With `most_in_flight` the rate is
    what the server can do, where that is less: nothing queues up on a slow machine."""
    running = Traffic(time.time())
    ended = threading.Event()
    began_s = time.monotonic()
    ask = _ask if path == COMPLETIONS else _post

    async def one(session: aiohttp.ClientSession, number: int) -> None:
        sent = body(number), headers(number) if headers else {}
        running.answered.append(await ask(session, f"{url}{path}", *sent, began_s))

    thread = threading.Thread(
        target=lambda: asyncio.run(_send(one, per_s, running, began_s, ended, most_in_flight)), name="traffic"
    )
    thread.start()
    try:
        yield running
    finally:
        ended.set()
        thread.join()


async def _send(
    one: Callable[[aiohttp.ClientSession, int], Coroutine[None, None, None]],
    per_s: float,
    running: Traffic,
    began_s: float,
    ended: threading.Event,
    most_in_flight: int | None,
) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(_TIMEOUT_S)
    ) as session:
        in_flight: set[asyncio.Task[None]] = set()
        while not ended.is_set():
            task = asyncio.create_task(one(session, running.sent))
            running.sent += 1
            in_flight.add(task)
            task.add_done_callback(in_flight.discard)
            await asyncio.sleep(max(0.0, began_s + running.sent / per_s - time.monotonic()))
            if len(in_flight) == most_in_flight:
                await asyncio.wait(in_flight, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*in_flight)


async def _ask(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any], headers: dict[str, str], began_s: float
) -> Answered:
    sent_s = time.monotonic()
    release, first_s, last_s, pieces = "", None, 0.0, []
    try:
        async with session.post(url, json={**body, "stream": True}, headers=headers) as response:
            release = response.headers.get("x-inflight-release", "")
            if response.status != 200:
                error = f"{response.status} {(await response.text())[:300]}"
                return Answered(sent_s - began_s, release, error, took_s=time.monotonic() - sent_s)
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    return Answered(sent_s - began_s, release, json.dumps(chunk["error"]))
                if chunk["choices"] and chunk["choices"][0]["text"]:
                    last_s = time.monotonic()
                    first_s = first_s or last_s
                    pieces.append(chunk["choices"][0]["text"])
    except (aiohttp.ClientError, asyncio.TimeoutError) as error:
        return Answered(sent_s - began_s, release, f"{type(error).__name__}: {error}")
    tokens = int(body["max_tokens"])
    between_s = None if first_s is None or tokens < 2 else (last_s - first_s) / (tokens - 1)
    return Answered(
        sent_s - began_s,
        release,
        None,
        None if first_s is None else first_s - sent_s,
        between_s,
        time.monotonic() - sent_s,
        "".join(pieces),
    )


async def _post(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any], headers: dict[str, str], began_s: float
) -> Answered:
    """Any request that is answered whole."""
    sent_s = time.monotonic()
    try:
        async with session.post(url, json=body, headers=headers) as response:
            release, text = response.headers.get("x-inflight-release", ""), await response.text()
            error = None if response.status == 200 else f"{response.status} {text[:300]}"
    except (aiohttp.ClientError, asyncio.TimeoutError) as failure:
        release, text, error = "", "", f"{type(failure).__name__}: {failure}"
    return Answered(sent_s - began_s, release, error, took_s=time.monotonic() - sent_s, text=text)
