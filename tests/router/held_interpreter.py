"""Measures for how long a router holds its interpreter, from inside of its process.

`python -m tests.router.held_interpreter` is a router with one key that may do all, a cache and a cascade. A
thread in it wants the interpreter two thousand times a second, and a task on its event loop wants a turn: the
longest that either waited, while others computed in this process, is told when standard input asks.
"""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import msgspec

from router.cascade.cascade import Cascade
from router.cascade.checks import Checks
from router.core.tenant import Limits, Role, Scope
from tests.router.body_shapes import CASCADE, JSON, Attempt
from tests.router.kserve.running import running_kserve
from tests.router.running import MODEL

DelayS = Callable[[], float]

# A router may hold its interpreter for so long, on a machine that decodes REFERENCE in REFERENCE_MS.
MOST_MS = 5.0
REFERENCE = b"[%b]" % b",".join([b'{"a":[1,2.5,"text"]}'] * 2_500)
REFERENCE_MS = 0.65
_NAP_S = 0.0005
_SWITCH_S = 0.001  # as the server sets it
_HELD_PACES = 40
_HI = [{"role": "user", "content": "hi"}]
NEIGHBOUR = (
    Attempt("", "GET", "/health/live"),
    Attempt(
        "",
        "POST",
        "/v1/chat/completions",
        json.dumps({"model": MODEL, "messages": _HI, "stream": True}).encode(),
    ),
)


@dataclass(frozen=True)
class Held:
    """The longest that the event loop's thread, and anybody, kept the interpreter; the machine's pace."""

    turn_ms: float
    lock_ms: float
    reference_ms: float

    @property
    def longest_ms(self) -> float:
        return max(self.turn_ms, self.lock_ms)

    @property
    def at_reference_pace_ms(self) -> float:
        """What it would be on a machine that is as fast as the one for which MOST_MS is meant."""
        return self.longest_ms * min(1.0, REFERENCE_MS / self.reference_ms)


class Watch:
    def __init__(self) -> None:
        self._turn_s = self._lock_s = 0.0

    async def watch_turns(self) -> None:
        """By the CPU time of the loop's thread: what others do does not count."""
        last_s = time.thread_time()
        while True:
            await asyncio.sleep(0.001)
            now_s = time.thread_time()
            self._turn_s = max(self._turn_s, now_s - last_s)
            last_s = now_s

    def watch_lock(self) -> None:
        """What this thread waited beyond its nap and the time for which it had no processor.

        Never more than what this process computed meanwhile: a busy machine is not the router's fault.
        """
        with _own_delays() as delay_s:
            while True:
                wall_s, cpu_s, delayed_s = time.perf_counter(), time.process_time(), delay_s()
                time.sleep(_NAP_S)
                waited_s = time.perf_counter() - wall_s - _NAP_S - (delay_s() - delayed_s)
                self._lock_s = max(self._lock_s, min(waited_s, time.process_time() - cpu_s))

    def reset(self) -> None:
        self._turn_s = self._lock_s = 0.0

    def tell(self, reference_ms: float) -> Held:
        return Held(self._turn_s * 1e3, self._lock_s * 1e3, reference_ms)


@contextmanager
def _own_delays() -> Iterator[DelayS]:
    """How long this thread has been ready to run without a processor, in all; 0 where Linux does not tell."""
    try:
        stat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    except OSError:
        yield lambda: 0.0
        return
    yield lambda: int(os.pread(stat, 100, 0).split()[1]) / 1e9
    os.close(stat)


def pace_ms() -> float:
    """The CPU time of the reference work, now."""
    took = []
    for _ in range(5):
        began_s = time.thread_time()
        msgspec.json.decode(REFERENCE)
        took.append(time.thread_time() - began_s)
    return median(took) * 1e3


async def main() -> None:
    cascade = Cascade(CASCADE, MODEL, MODEL, Checks(least_log_prob=-1.0))
    async with running_kserve(cascade=cascade) as running:
        router, watch = running.router, Watch()
        tenant = await router.new_tenant("acme", Limits(answers_cached_s=600))
        key = await router.new_key(tenant, frozenset(Scope), Role.OWNER, platform_admin=True)
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 20, 50)
        sys.setswitchinterval(_SWITCH_S)
        watching = asyncio.ensure_future(watch.watch_turns())
        threading.Thread(target=watch.watch_lock, daemon=True).start()
        _say({"http": running.http_url, "grpc": running.grpc_url, "key": key})
        reading = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reading), sys.stdin
        )
        while line := await reading.readline():
            if line == b"hold\n":
                await asyncio.to_thread(msgspec.json.decode, b"[%b]" % b",".join([REFERENCE] * _HELD_PACES))
                _say({})
            elif line == b"reset\n":
                await asyncio.sleep(0.002)  # what was begun by what came before is over
                watch.reset()
                _say({})
            else:
                found = watch.tell(pace_ms())
                await asyncio.sleep(0.002)
                _say(asdict(found))
        watching.cancel()


def _say(value: object) -> None:
    print(json.dumps(value), flush=True)


class WatchedRouter:
    """Such a router, in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        told = self._hear()
        self.http_address, self.grpc_address, self.key = told["http"], told["grpc"], told["key"]

    def longest(self, do: Callable[[], object]) -> Held:
        """While it is done, and until the router has answered a request that came after it."""
        self._ask("reset")
        do()
        self.send(Attempt("", "GET", "/health/live"))
        return Held(**self._ask("tell"))

    def send(self, attempt: Attempt) -> int:
        """The status; 0 where the connection was closed in the middle of the request."""
        client = http.client.HTTPConnection(self.http_address, timeout=60)
        headers = {"authorization": f"Bearer {self.key}", **JSON, **dict(attempt.headers)}
        try:
            client.request(attempt.method, attempt.path, attempt.body or None, headers)
            answer = client.getresponse()
            answer.read()
            return answer.status
        except (ConnectionError, http.client.HTTPException):
            return 0
        finally:
            client.close()

    def hold(self) -> None:
        """Has a thread of the router hold the interpreter for many times as long as it may."""
        self._ask("hold")

    def neighbour(self, times: int) -> None:
        """Asks what everybody asks, again and again."""
        for _ in range(times):
            for attempt in NEIGHBOUR:
                assert self.send(attempt) == http.client.OK

    @contextmanager
    def attacked(self, attempt: Attempt, connections: int) -> Iterator[None]:
        """Meanwhile it is sent without end, over so many connections."""
        ended = threading.Event()

        def attack() -> None:
            while not ended.is_set():
                self.send(attempt)

        attackers = [threading.Thread(target=attack) for _ in range(connections)]
        for each in attackers:
            each.start()
        try:
            yield
        finally:
            ended.set()
            for each in attackers:
                each.join()

    def _ask(self, what: str) -> dict[str, float]:
        assert self._process.stdin is not None
        print(what, file=self._process.stdin, flush=True)
        return self._hear()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the router has ended"
        told: dict[str, Any] = json.loads(line)
        return told


@contextmanager
def watched_router() -> Iterator[WatchedRouter]:
    command = [sys.executable, "-m", "tests.router.held_interpreter"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield WatchedRouter(process)
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(main())
