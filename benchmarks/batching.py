"""Continuous against static batching on the real stack: one parameter differs, the load is the same."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.plots import Plots
from benchmarks.stack import running_stack
from loadtest.mixed_lengths import SHORT, all_at_once, steady
from loadtest.percentiles import percentile
from loadtest.replay.sender import SendResult, Target, send

SHORT_TOKENS, LONG_TOKENS, SHORT_PER_LONG = 8, 400, 31
GROUPS = 8
MAX_BATCH_SIZE = 32
# Where weights are widest, a batch pays most, as it does on a GPU: a sequence alone waits for memory.
PRECISION = "fp32"
STEADY_REQUESTS_PER_S, STEADY_S = 2.0, 60.0
KINDS = {"continuous": "inflight_fused_batching", "static (V1)": "V1"}


@dataclass(frozen=True)
class Measured:
    pile: SendResult
    steady: SendResult


def measure(gpt_model_type: str) -> Measured:
    engine = {
        "gpt_model_type": gpt_model_type,
        "inflight_max_batch_size": str(MAX_BATCH_SIZE),
        "inflight_precision": PRECISION,
    }
    pile = all_at_once(GROUPS, SHORT_PER_LONG, SHORT_TOKENS, LONG_TOKENS)
    arrivals = steady(STEADY_REQUESTS_PER_S, STEADY_S, SHORT_PER_LONG, SHORT_TOKENS, LONG_TOKENS)
    with running_stack(engine) as stack:
        target = Target(stack.url, stack.model, tells_tier=False)
        asyncio.run(send(target, pile[:2]))  # the first pass through torch is slow
        return Measured(asyncio.run(send(target, pile)), asyncio.run(send(target, arrivals)))


def report(console: Console, plots: Plots) -> bool:
    """Prints both side by side; returns whether every goal was met and no request failed."""
    console.print(
        f"Continuous and static batching side by side: {SHORT_PER_LONG} answers of {SHORT_TOKENS} tokens for "
        f"each one of {LONG_TOKENS}, batch of {MAX_BATCH_SIZE}"
    )
    measured = {}
    for kind, gpt_model_type in KINDS.items():
        console.print(f"  running {kind} …")
        measured[kind] = measure(gpt_model_type)
    continuous, static = measured.values()
    rows = compare(continuous, static)
    table = Table("", *KINDS, "ratio", "goal")
    for row in rows:
        table.add_row(*row.cells())
    failed = [len(m.pile.errors) + len(m.steady.errors) for m in measured.values()]
    table.add_row("failed requests", *map(str, failed), "", "0")
    console.print(table)
    return not any(failed) and all(row.is_met for row in rows)


@dataclass(frozen=True)
class Row:
    label: str
    unit: str
    continuous: float
    static: float
    ratio: float
    goal: float | None

    @property
    def is_met(self) -> bool:
        return self.goal is None or self.ratio >= self.goal

    def cells(self) -> list[str]:
        goal = "" if self.goal is None else f"{self.goal:g} × {'met' if self.is_met else 'MISSED'}"
        values = [f"{value:.2f} {self.unit}" for value in (self.continuous, self.static)]
        return [self.label, *values, f"{self.ratio:.1f} ×", goal]


def compare(continuous: Measured, static: Measured) -> list[Row]:
    left, right = continuous.pile.tokens_per_s, static.pile.tokens_per_s
    rows = [Row("all at once: throughput", "tok/s", left, right, left / right, 2)]
    for name, share, goal in (("p50", 0.5, None), ("p99", 0.99, 5.0)):
        for label, results in (
            ("all at once", (continuous.pile, static.pile)),
            (f"{STEADY_REQUESTS_PER_S:g} requests/s", (continuous.steady, static.steady)),
        ):
            left, right = (percentile(result.latencies_s(SHORT), share) for result in results)
            rows.append(Row(f"{label}: {name} of short answers", "s", left, right, right / left, goal))
    return rows
