"""What tracing costs the router: processor time of a request and of a chunk, off and on, in turns.

Usage: python -m benchmarks.tracing [ROUNDS]
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks.router import load
from benchmarks.router.contestants import INFLIGHT, Contestant, Start, Stubs
from benchmarks.router.pacing import max_tokens
from benchmarks.router.processes import LOAD_CORE, running
from benchmarks.stack import free_port

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

    from benchmarks.router.load import Target
    from benchmarks.router.processes import Costs

ROUNDS = 5
_SECONDS = 3.0
_REST_S = 2.0  # until all that is to be sent has been
_STREAMS, _TOKENS, _INTERVAL_MS = 64, 100, 20
# Off, nobody asked for it, one in a hundred, and every request.
PERCENTS: tuple[float | None, ...] = (None, 0.0, 1.0, 100.0)


@dataclass(frozen=True)
class Cost:
    """Processor time of the router: of a request with an answer of one token, and of a streamed one."""

    request_us: float
    stream_us: float


@contextmanager
def sink() -> Iterator[str]:
    """Takes whatever is sent to it."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def router(percent: float | None, url: str) -> Contestant:
    def start(port: int, stubs: Stubs, folder: Path) -> Start:
        begun = INFLIGHT.start(port, stubs, folder)
        if percent is not None:
            file = folder / "router.toml"
            tracing = f'otlp_endpoint = "{url}"\ntrace_percent = {percent}\n'
            file.write_text(tracing + file.read_text())
        return begun

    return Contestant(f"tracing-{percent}", start, "ours")


async def measure(target: Target, costs: Costs) -> Cost:
    small = target.request(max_tokens(1), stream=False)
    streamed = target.request(max_tokens(_TOKENS, _INTERVAL_MS), stream=True)
    await load.whole(target, small, 1, connections=8, seconds=1.0)
    await asyncio.sleep(_REST_S)
    idle_s = await _cpu_s(costs, asyncio.sleep(_REST_S))

    async def whole() -> int:
        done = await load.whole(target, small, 1, connections=16, seconds=_SECONDS)
        await asyncio.sleep(_REST_S)
        return done.requests

    async def streams() -> None:
        await load.streams(target, streamed, _TOKENS, _STREAMS)
        await asyncio.sleep(_REST_S)

    start_s = costs.cpu_s()
    requests = await whole()
    request_s = (costs.cpu_s() - start_s - idle_s) / requests
    stream_s = (await _cpu_s(costs, streams()) - idle_s) / _STREAMS
    return Cost(request_s * 1e6, stream_s * 1e6)


async def _cpu_s(costs: Costs, work: Awaitable[None]) -> float:
    start_s = costs.cpu_s()
    await work
    return costs.cpu_s() - start_s


def main(rounds: int = ROUNDS) -> None:
    found: dict[float | None, list[Cost]] = {percent: [] for percent in PERCENTS}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="inflight-")))
        url = stack.enter_context(sink())
        stubs = Stubs(0, free_port())
        command = [sys.executable, "-m", "benchmarks.router.triton_stub", str(stubs.triton_port)]
        stack.enter_context(running(command, LOAD_CORE, folder / "stub.txt"))
        for number in range(rounds):
            for percent in PERCENTS:
                serving = router(percent, url).serving(stubs, folder / f"{number}-{percent}")
                with serving as (target, costs):
                    found[percent].append(asyncio.run(measure(target, costs)))
    table = Table(
        "traced", "us a request", "us a stream of 100 chunks", "times off, request", "times off, stream"
    )
    off = _middle(found[None])
    for percent, costs_of in found.items():
        cost = _middle(costs_of)
        name = "off" if percent is None else f"{percent:g} %"
        ratios = (cost.request_us / off.request_us, cost.stream_us / off.stream_us)
        table.add_row(
            name, f"{cost.request_us:.0f}", f"{cost.stream_us:.0f}", *(f"{each:.2f}" for each in ratios)
        )
    Console(width=120).print(table)


def _middle(costs: list[Cost]) -> Cost:
    median = partial(map, statistics.median)
    return Cost(*median(([cost.request_us for cost in costs], [cost.stream_us for cost in costs])))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
