"""How many tokens a second the path around the engine carries, with an engine that costs nothing."""

from __future__ import annotations

import asyncio

from rich.console import Console
from rich.table import Table

from benchmarks.plots import Plots
from benchmarks.stack import running_stack
from loadtest.percentiles import percentile
from loadtest.replay.plan import PlannedRequest
from loadtest.replay.sender import SendResult, Target, send

STREAMS = 64
SECONDS = 10
RATES_TOKENS_PER_S = (2_000, 20_000)
# A path that cannot keep up falls further behind every second; one that can is late by its own latency alone.
MAX_BEHIND_S = 0.5


def measure(tokens_per_s: int, streams: int) -> SendResult:
    engine = {"inflight_runtime": "synthetic", "inflight_synthetic_tokens_per_s": str(tokens_per_s)}
    tokens = tokens_per_s * SECONDS // streams
    plan = [PlannedRequest(0.0, "Hello", tokens, "stream") for _ in range(streams)]
    with running_stack(engine) as stack:
        target = Target(stack.url, stack.model, tells_tier=False, keeps_text=True)
        asyncio.run(send(target, plan[:1]))
        result = asyncio.run(send(target, plan))
    if result.errors or result.tokens != tokens * streams:
        raise RuntimeError(f"{result.tokens} of {tokens * streams} tokens arrived; {result.errors[:1]}")
    if len({each.text for each in result.results}) != 1:
        raise RuntimeError("the streams differ: tokens were lost or came out of order")
    return result


def report(console: Console, plots: Plots) -> bool:
    """Prints what arrived of what was offered; returns whether all of it came without falling behind."""
    console.print(
        f"The path around the engine, {STREAMS} streams from the ensemble to the client, {SECONDS} s"
    )
    table = Table(
        "offered", "delivered", "behind at the end", "tokens a chunk", "first token", "longest silence"
    )
    is_met = True
    for rate in RATES_TOKENS_PER_S:
        console.print(f"  running {rate:,} tokens/s …")
        result = measure(rate, STREAMS)
        behind_s = result.duration_s - result.tokens / rate
        is_met &= behind_s < MAX_BEHIND_S
        firsts = sorted(each.first_token_s or 0.0 for each in result.results)
        silence_s = max(each.longest_gap_s for each in result.results)
        table.add_row(
            f"{rate:,} tok/s",
            f"{result.tokens_per_s:,.0f} tok/s",
            f"{behind_s * 1000:.0f} ms",
            f"{result.tokens / result.pieces:.1f}",
            f"{percentile(firsts, 0.5) * 1000:.0f} ms p50",
            f"{silence_s * 1000:.0f} ms",
        )
    console.print(table)
    verdict = "met" if is_met else "MISSED"
    console.print(f"goal: at most {MAX_BEHIND_S * 1000:.0f} ms behind the engine at the end: {verdict}")
    return is_met
