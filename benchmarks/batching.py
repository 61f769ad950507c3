"""Continuous against static batching on the real stack: one parameter differs, the load is the same."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.stack import running_stack
from loadtest.mixed_lengths import SHORT, all_at_once, steady
from loadtest.open_loop import LoadResult, percentile, run_plan

SHORT_TOKENS, LONG_TOKENS, SHORT_PER_LONG = 8, 400, 31
GROUPS = 8
MAX_BATCH_SIZE = 32
STEADY_REQUESTS_PER_S, STEADY_S = 2.0, 60.0
KINDS = {"continuous": "inflight_fused_batching", "static (V1)": "V1"}


@dataclass(frozen=True)
class Measured:
    pile: LoadResult
    steady: LoadResult


def measure(gpt_model_type: str) -> Measured:
    engine = {"gpt_model_type": gpt_model_type, "inflight_max_batch_size": str(MAX_BATCH_SIZE)}
    pile = all_at_once(GROUPS, SHORT_PER_LONG, SHORT_TOKENS, LONG_TOKENS)
    arrivals = steady(STEADY_REQUESTS_PER_S, STEADY_S, SHORT_PER_LONG, SHORT_TOKENS, LONG_TOKENS)
    with running_stack(engine) as stack:
        asyncio.run(run_plan(stack.url, stack.model, pile[:2]))  # the first pass through torch is slow
        return Measured(
            asyncio.run(run_plan(stack.url, stack.model, pile)),
            asyncio.run(run_plan(stack.url, stack.model, arrivals)),
        )


def report(console: Console) -> None:
    console.print(
        f"Continuous and static batching side by side: {SHORT_PER_LONG} answers of {SHORT_TOKENS} tokens for "
        f"each one of {LONG_TOKENS}, batch of {MAX_BATCH_SIZE}"
    )
    measured = {}
    for kind, gpt_model_type in KINDS.items():
        console.print(f"  running {kind} …")
        measured[kind] = measure(gpt_model_type)
    console.print(table(measured))


def table(measured: dict[str, Measured]) -> Table:
    table = Table("", *KINDS, "ratio")
    continuous, static = measured.values()

    def row(label: str, left: float, right: float, ratio: float, unit: str) -> None:
        table.add_row(label, f"{left:.2f} {unit}", f"{right:.2f} {unit}", f"{ratio:.1f} ×")

    left, right = continuous.pile.tokens_per_s, static.pile.tokens_per_s
    row("all at once: throughput", left, right, left / right, "tok/s")
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        for label, results in (
            ("all at once", [continuous.pile, static.pile]),
            (f"{STEADY_REQUESTS_PER_S:g} requests/s", [continuous.steady, static.steady]),
        ):
            left, right = (percentile(result.latencies_s(SHORT), share) for result in results)
            row(f"{label}: {name} latency of short answers", left, right, right / left, "s")
    errors = [len(m.pile.errors) + len(m.steady.errors) for m in measured.values()]
    table.add_row("failed requests", *(str(count) for count in errors), "")
    return table
