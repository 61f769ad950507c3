"""Measures every router several times in turn and prints the best of each beside the goals."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop
from rich.table import Table

from benchmarks.router.contestants import CONTESTANTS, DIRECT, INFLIGHT, Contestant, Stubs
from benchmarks.router.measuring import STREAM_TOKENS, STREAMS, Figures, measure
from benchmarks.router.processes import LOAD_CORE, running
from benchmarks.stack import free_port

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from rich.console import Console

    from benchmarks.plots import Plots

ROUNDS = 3
_MANY_STREAMS = 2000
_COLUMNS = {
    "request_us": ("µs a request", ".0f"),
    "requests_per_s": ("requests/s", ",.0f"),
    "chunk_us": ("µs a chunk", ".1f"),
    "first_ms": ("first token, 1 stream, ms", ".2f"),
    "first_at_64_ms": ("at 64, ms", ".1f"),
    "gap_p99_ms": ("p99 of 20 ms gaps", ".1f"),
    "large_us": ("220 KB: µs", ".0f"),
    "large_per_s": ("220 KB: /s", ",.0f"),
    "stream_kib": ("KiB a stream", ".1f"),
}


class Results:
    """All rounds of all routers."""

    def __init__(self) -> None:
        self._rounds: dict[str, list[Figures]] = {}
        self.many_streams_kib = 0.0

    def add(self, name: str, figures: Figures) -> None:
        self._rounds.setdefault(name, []).append(figures)

    @property
    def names(self) -> list[str]:
        return list(self._rounds)

    def of(self, name: str) -> Figures:
        """The best of all rounds: whatever else runs on the machine only makes figures worse."""
        rounds = [asdict(figures) for figures in self._rounds[name]]
        return Figures(
            **{
                each.name: (max if each.name.endswith("_per_s") else min)(one[each.name] for one in rounds)
                for each in fields(Figures)
            }
        )


def report(console: Console, plots: Plots, names: Sequence[str] = (), rounds: int = ROUNDS) -> bool:
    wanted = [each for each in CONTESTANTS if not names or each.name in names]
    present = []
    for each in wanted:
        console.print(f"  installing {each.name} …" if each.packages else f"  {each.name}")
        if each.install():
            present.append(each)
        else:
            console.print(f"  {each.name} is not available here: left out")
    console.print(
        f"Each router on core 0, client and upstream stub on core {LOAD_CORE}; CPU of the router's own "
        f"processes; best of {rounds} rounds in turn; {STREAMS} streams of {STREAM_TOKENS} tokens, "
        "one every 20 ms"
    )
    results = run(console, present, rounds)
    print_table(console, results)
    draw(plots, results)
    return judge(console, results, [each for each in present if each.name in results.names])


def run(console: Console, everyone: Sequence[Contestant], rounds: int) -> Results:
    results = Results()
    before = os.sched_getaffinity(0)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="inflight-router-")))
        stubs = Stubs(free_port(), free_port())
        for name, port in (("openai_stub", stubs.openai_port), ("triton_stub", stubs.triton_port)):
            command = [sys.executable, "-m", f"benchmarks.router.{name}", str(port)]
            stack.enter_context(running(command, LOAD_CORE, folder / f"{name}.txt"))
        os.sched_setaffinity(0, {LOAD_CORE})
        stack.callback(os.sched_setaffinity, 0, before)
        for number in range(rounds):
            for each in (DIRECT, *everyone):
                console.print(f"  round {number + 1}: {each.name} …")
                try:
                    with each.serving(stubs, folder / f"{each.name}-{number}") as (target, costs):
                        results.add(each.name, _on_uvloop(measure(target, costs)))
                except (OSError, RuntimeError) as error:
                    if each in (DIRECT, INFLIGHT):
                        raise
                    console.print(f"  {each.name} failed: {error}"[:400])
        if INFLIGHT in everyone:
            console.print(f"  {_MANY_STREAMS} streams at once: {INFLIGHT.name} …")
            with INFLIGHT.serving(stubs, folder / "many") as (target, costs):
                figures = _on_uvloop(measure(target, costs, _MANY_STREAMS))
                results.many_streams_kib = figures.stream_kib
    return results


def _on_uvloop(measuring: Coroutine[None, None, Figures]) -> Figures:
    loop = uvloop.new_event_loop()
    try:
        return loop.run_until_complete(measuring)
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def print_table(console: Console, results: Results) -> None:
    table = Table("", *(title for title, _ in _COLUMNS.values()))
    for name in results.names:
        figures = asdict(results.of(name))
        table.add_row(name, *(format(figures[key], style) for key, (_, style) in _COLUMNS.items()))
    console.print(table)


def draw(plots: Plots, results: Results) -> None:
    shown = [name for name in results.names if name != DIRECT.name]
    series = {name: [results.of(name).request_us, results.of(name).chunk_us] for name in shown}
    plots.bars(
        "router",
        "CPU of the router, a request and a chunk (logarithmic)",
        "µs of CPU",
        ["a request", "a chunk"],
        series,
        logarithmic=True,
    )


def judge(console: Console, results: Results, everyone: Sequence[Contestant]) -> bool:
    ours = results.of(INFLIGHT.name)
    by_kind = {
        kind: {each.name: results.of(each.name) for each in everyone if each.kind == kind}
        for kind in ("native", "python")
    }
    rows: list[tuple[str, str, bool]] = []
    for name, peer in by_kind["python"].items():
        for what, ratio in (
            ("request", peer.request_us / ours.request_us),
            ("chunk", peer.chunk_us / ours.chunk_us),
        ):
            rows.append((f"5 × less CPU a {what} than {name}", f"{ratio:.1f} ×", ratio >= 5))
    for name, peer in by_kind["native"].items():
        ratio = ours.request_us / peer.request_us
        if name != "nginx":  # it never looks at a body: a floor, not a peer
            rows.append((f"at most 2 × the CPU a request of {name}", f"{ratio:.2f} ×", ratio <= 2))
    if "vllm-router" in by_kind["native"]:
        ratio = ours.large_us / by_kind["native"]["vllm-router"].large_us
        rows.append(("220 KB prompts at no more CPU than vllm-router", f"{ratio:.2f} ×", ratio <= 1))
    rows.append(("first token not delayed by the socket", f"{ours.first_ms:.1f} ms", ours.first_ms < 20))
    kib = results.many_streams_kib
    rows.append(
        (f"{_MANY_STREAMS} open streams without an error, 64 KiB each", f"{kib:.1f} KiB", 0 < kib <= 64)
    )
    table = Table("goal", "measured", "")
    for label, value, met in rows:
        table.add_row(label, value, "met" if met else "MISSED")
    console.print(table)
    return all(met for _, _, met in rows)
