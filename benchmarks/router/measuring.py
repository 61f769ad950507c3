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
_WHOLE_S = 5.0
_LARGE_S = 4.0
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

    start_s = costs.cpu_s()
    whole = await load.whole(target, small, 1, connections=32, seconds=_WHOLE_S)
    request_us = (costs.cpu_s() - start_s) / whole.requests * 1e6

    streaming = target.request(max_tokens(STREAM_TOKENS, STREAM_INTERVAL_MS), stream=True)
    start_s = costs.cpu_s()
    streams = await load.streams(target, streaming, STREAM_TOKENS, STREAMS)
    chunk_us = (costs.cpu_s() - start_s) / (STREAMS * STREAM_TOKENS) * 1e6

    short = target.request(max_tokens(3, 5), stream=True)
    first_ms = await asyncio.to_thread(load.first_token_ms, target, short, _FIRST_TIMES)

    large = target.request(max_tokens(1), stream=False, prompt_chars=LARGE_CHARS)
    start_s = costs.cpu_s()
    long = await load.whole(target, large, 1, connections=8, seconds=_LARGE_S)
    large_us = (costs.cpu_s() - start_s) / long.requests * 1e6
    return Figures(
        request_us=request_us,
        requests_per_s=whole.requests / whole.seconds,
        chunk_us=chunk_us,
        first_ms=first_ms,
        first_at_64_ms=streams.first_p50_ms,
        gap_p99_ms=streams.gap_p99_ms,
        large_us=large_us,
        large_per_s=long.requests / long.seconds,
        stream_kib=stream_kib,
    )


async def _memory(target: Target, costs: Costs, count: int) -> float:
    """KiB that each open stream adds."""
    request = target.request(max_tokens(_OPEN_TOKENS, _OPEN_INTERVAL_MS), stream=True)
    before = costs.rss_bytes()
    streams = load.OpenStreams(target)
    await streams.open(request, count)
    grown = costs.rss_bytes() - before
    await streams.close(_OPEN_TOKENS)
    return grown / count / 1024
