"""The client of these measurements: as little work a request as Python allows, every answer checked."""

from __future__ import annotations

import asyncio
import http.client
import socket
import statistics
import time
from dataclasses import dataclass, field
from typing import cast

import httptools
import msgspec

_MODEL = "bench"
_EVENT = b"data: "
_TEXT = b'"content":"'  # in every event with a token, whoever wrote it, once spaces are out


@dataclass(frozen=True)
class Target:
    port: int
    key: str = "sk-none"

    def request(self, max_tokens: int, stream: bool, prompt_chars: int = 500) -> bytes:
        """About 0.7 KB with a prompt of 500 characters."""
        prompt = ("why does the router count tokens and not requests? " * (prompt_chars // 50 + 1))[
            :prompt_chars
        ]
        body = msgspec.json.encode(
            {
                "model": _MODEL,
                "messages": [
                    {"role": "system", "content": "You are a helpful assistant."},
                    {"role": "user", "content": prompt},
                ],
                "max_tokens": max_tokens,
                "stream": stream,
            }
        )
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
            f"Authorization: Bearer {self.key}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


class Caller(asyncio.Protocol):
    """One connection: sends a request, then waits for the whole answer."""

    def __init__(self) -> None:
        self.status = 0
        self.body: list[bytes] = []
        self.pieces_s: list[float] = []
        self._done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def begin(self, request: bytes) -> asyncio.Future[None]:
        self.body = []
        self.pieces_s = []
        self._parser = httptools.HttpResponseParser(self)
        self._done = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self._done

    def data_received(self, data: bytes) -> None:
        if _EVENT in data:
            self.pieces_s.append(time.perf_counter())
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(exc or ConnectionError("the router closed the connection"))

    def check(self, tokens: int, stream: bool) -> None:
        """Raises where the answer is not whole."""
        body = b"".join(self.body)
        if self.status != 200:
            raise RuntimeError(f"status {self.status}: {body[:300]!r}")
        if stream:
            texts = body.replace(b" ", b"").count(_TEXT) - body.replace(b" ", b"").count(_TEXT + b'"')
            if texts != tokens or b"[DONE]" not in body:
                raise RuntimeError(f"{texts} of {tokens} tokens: {body[-300:]!r}")
        elif b'"content"' not in body:
            raise RuntimeError(f"no answer: {body[:300]!r}")


async def connect(target: Target) -> Caller:
    loop = asyncio.get_running_loop()
    _, caller = await loop.create_connection(Caller, "127.0.0.1", target.port)
    return caller


@dataclass
class Whole:
    """Requests one after another on each connection, one at least."""

    requests: int = 0
    seconds: float = 0.0


async def whole(target: Target, request: bytes, tokens: int, connections: int, seconds: float) -> Whole:
    callers = [await connect(target) for _ in range(connections)]
    result = Whole()
    start_s = time.perf_counter()

    async def ask(caller: Caller) -> None:
        while True:
            await caller.begin(request)
            caller.check(tokens, stream=False)
            result.requests += 1
            if time.perf_counter() - start_s >= seconds:
                return

    await asyncio.gather(*map(ask, callers))
    result.seconds = time.perf_counter() - start_s
    for caller in callers:
        caller.transport.close()
    return result


@dataclass
class Streams:
    """Streams side by side; times in milliseconds."""

    first_ms: list[float] = field(default_factory=list)
    gaps_ms: list[float] = field(default_factory=list)

    @property
    def first_p50_ms(self) -> float:
        return statistics.median(self.first_ms)

    @property
    def gap_p99_ms(self) -> float:
        return sorted(self.gaps_ms)[int(len(self.gaps_ms) * 0.99)]


async def streams(target: Target, request: bytes, tokens: int, count: int, stagger_s: float = 0.0) -> Streams:
    callers = [await connect(target) for _ in range(count)]
    result = Streams()

    async def ask(number: int, caller: Caller) -> None:
        await asyncio.sleep(number * stagger_s)
        start_s = time.perf_counter()
        await caller.begin(request)
        caller.check(tokens, stream=True)
        result.first_ms.append((caller.pieces_s[0] - start_s) * 1e3)
        pairs = zip(caller.pieces_s, caller.pieces_s[1:], strict=False)
        result.gaps_ms += [(later - earlier) * 1e3 for earlier, later in pairs]

    await asyncio.gather(*(ask(number, caller) for number, caller in enumerate(callers)))
    for caller in callers:
        caller.transport.close()
    return result


class OpenStreams:
    """Streams that stay open while the router's memory is read."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._callers: list[Caller] = []
        self._ends: list[asyncio.Future[None]] = []
        self._first: list[asyncio.Task[None]] = []

    async def open(self, request: bytes, count: int) -> None:
        """Returns once every stream has had its first token."""
        for _ in range(count):
            caller = await connect(self._target)
            self._callers.append(caller)
            self._ends.append(caller.begin(request))
        while not all(caller.pieces_s for caller in self._callers):
            for end in self._ends:
                if end.done():
                    end.result()
            await asyncio.sleep(0.05)

    async def close(self, tokens: int) -> None:
        """Waits for every answer to its last byte."""
        await asyncio.gather(*self._ends)
        for caller in self._callers:
            caller.check(tokens, stream=True)
            caller.transport.close()


def first_token_ms(target: Target, request: bytes, times: int) -> float:
    """Median time to the first event on a plain blocking socket, kept open.

    A router that leaves Nagle's algorithm on shows here: its first token waits 40 ms for an acknowledgement.
    """
    found = []
    with socket.create_connection(("127.0.0.1", target.port), timeout=60) as connection:
        for _ in range(times):
            start_s = time.perf_counter()
            connection.sendall(request)
            answer = b""
            first_s = 0.0
            while not answer.endswith(b"0\r\n\r\n"):
                received = connection.recv(65536)
                if not received:
                    raise ConnectionError("the router closed the connection")
                answer += received
                if not first_s and _TEXT in answer.replace(b" ", b"").replace(_TEXT + b'"', b""):
                    first_s = time.perf_counter()
            found.append((first_s - start_s) * 1e3)
    return statistics.median(found)


def ask_once(target: Target) -> str:
    """What is wrong with the answer to a small request; nothing where it is well."""
    head, _, body = target.request(1, stream=False).partition(b"\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=10)
    try:
        connection.request("POST", "/v1/chat/completions", body, headers)
        answer = connection.getresponse()
        text = answer.read()
    except (OSError, http.client.HTTPException) as error:
        return str(error)
    finally:
        connection.close()
    return "" if answer.status == 200 and b'"content"' in text else f"{answer.status} {text[:500]!r}"
