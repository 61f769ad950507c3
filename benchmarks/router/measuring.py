"""One round of one router: what a request, a chunk and an open stream cost it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.router import load
from benchmarks.router.pacing import max_tokens

if TYPE_CHECKING:
    from benchmarks.router.load import Target
    from benchmarks.router.processes import Costs

LARGE_CHARS = 220_000
STREAMS = 64
STREAM_TOKENS = 150
STREAM_INTERVAL_MS = 20
OPEN_STREAMS = 500
_OPEN_TOKENS = 12
_OPEN_INTERVAL_MS = 500
_WARM_S = 1.0
_WINDOWS = 5
_WINDOW_S = 1.0
_FIRST_TIMES = 30


@dataclass(frozen=True)
class Figures:
    """CPU is that of the router's own processes."""

    request_us: float
    requests_per_s: float
    chunk_us: float
    first_ms: float
    first_at_64_ms: float
    gap_p99_ms: float
    large_us: float
    large_per_s: float
    stream_kib: float


async def measure(target: Target, costs: Costs, open_streams: int = OPEN_STREAMS) -> Figures:
    small = target.request(max_tokens(1), stream=False)
    await load.whole(target, small, 1, connections=8, seconds=_WARM_S)
    stream_kib = await _memory(target, costs, open_streams)

    request_us, requests_per_s = await _whole(target, costs, small, connections=32)

    streaming = target.request(max_tokens(STREAM_TOKENS, STREAM_INTERVAL_MS), stream=True)
    start_s = costs.cpu_s()
    streams = await load.streams(target, streaming, STREAM_TOKENS, STREAMS)
    chunk_us = (costs.cpu_s() - start_s) / (STREAMS * STREAM_TOKENS) * 1e6

    short = target.request(max_tokens(3, 5), stream=True)
    first_ms = await asyncio.to_thread(load.first_token_ms, target, short, _FIRST_TIMES)

    large = target.request(max_tokens(1), stream=False, prompt_chars=LARGE_CHARS)
    large_us, large_per_s = await _whole(target, costs, large, connections=8)
    return Figures(
        request_us=request_us,
        requests_per_s=requests_per_s,
        chunk_us=chunk_us,
        first_ms=first_ms,
        first_at_64_ms=streams.first_p50_ms,
        gap_p99_ms=streams.gap_p99_ms,
        large_us=large_us,
        large_per_s=large_per_s,
        stream_kib=stream_kib,
    )


async def _whole(target: Target, costs: Costs, request: bytes, connections: int) -> tuple[float, float]:
    """CPU µs of a request, and requests/s: each the best of several windows, because noise only adds."""
    us, per_s = [], []
    for _ in range(_WINDOWS):
        start_s = costs.cpu_s()
        done = await load.whole(target, request, 1, connections, _WINDOW_S)
        us.append((costs.cpu_s() - start_s) / done.requests * 1e6)
        per_s.append(done.requests / done.seconds)
    return min(us), max(per_s)


async def _memory(target: Target, costs: Costs, count: int) -> float:
    """KiB that each open stream adds."""
    request = target.request(max_tokens(_OPEN_TOKENS, _OPEN_INTERVAL_MS), stream=True)
    before = costs.rss_bytes()
    streams = load.OpenStreams(target)
    await streams.open(request, count)
    grown = costs.rss_bytes() - before
    await streams.close(_OPEN_TOKENS)
    return grown / count / 1024
