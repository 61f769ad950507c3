"""`python -m benchmarks.gpu.releases`: releases of an 8B model rolled out, killed and revived on one GPU.

On the GPU's host `--keep FILE` keeps what was seen; elsewhere `--draw FILE` makes the plot of it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.gpu.llama_8b import RANDOM_WEIGHTS, write_checkpoint
from benchmarks.plots import Plots
from benchmarks.releases import Event, draw, history, inflight, kill_engine, rollout, show
from benchmarks.stack import RunningStack, start_stack, wait_until_ready
from benchmarks.traffic import Answered, Traffic, completion, traffic
from router.control.releases.records import Rollout, RolloutState

PER_S, FEW_PER_S, TOKENS = 20.0, 2.0, 64
PLAN = ("--steps", "20%,50%,100%", "--min-requests", "20", "--min-duration", "15s")
MOST_S = 120.0  # of one rollout; the whole takes about seven minutes, and less than nine
# All fit beside each other; random weights, for nobody reads the answers.
ENGINE = {**RANDOM_WEIGHTS, "kv_cache_free_gpu_mem_fraction": "0.2"}
GOOD, SLOW = ("2", "fp8"), ("3", "fp32")


@dataclass(frozen=True, slots=True)
class Tried:
    """One rollout, with how many requests of people its canary got."""

    what: str
    per_s: float
    rollout: Rollout
    requests: int
    goal: RolloutState

    @property
    def is_met(self) -> bool:
        return self.rollout.state is self.goal

    @property
    def cells(self) -> tuple[str, ...]:
        took_s = (self.rollout.ended_s or time.time()) - self.rollout.began_s
        ended = self.rollout.state.value if self.rollout.state.is_over else "undecided"
        figures = (f"{self.per_s:g}", ended, f"{self.requests}", f"{took_s:.0f}")
        return (self.what, *figures, self.goal.value, "met" if self.is_met else "MISSED", self.rollout.reason)


COLUMNS = ("canary", "requests/s", "ended", "met it", "seconds", "goal", "", "reason")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="where to write the measurements, as JSON")
    parser.add_argument("--draw", type=Path, help="plot the measurements in such a file, and measure nothing")
    parser.add_argument("--plots", type=Path, default=Path("docs/plots"), help="where to write the plots")
    asked = parser.parse_args()
    if asked.draw:
        running, events = read(asked.draw)
        draw(Plots(asked.plots), "releases", running, events)
        return
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        model = write_checkpoint(Path(folder) / "llama-8b")
        stack = start_stack(Path(folder), ENGINE, str(model), Path(folder) / "data", embeddings=False)
        try:
            wait_until_ready(stack)
            print(f"bf16: ready after {time.monotonic() - began_s:.1f} s", flush=True)
            is_met = measure(stack, model, asked.keep)
        except BaseException:
            print(stack.output()[-6000:])
            raise
        finally:
            stack.end()
    print(f"{time.monotonic() - began_s:.0f} s in all")
    sys.exit(not is_met)


def measure(stack: RunningStack, model: Path, keep: Path | None) -> bool:
    for version, precision in (GOOD, SLOW):
        chosen = ("--version", version, "--set", f"inflight_precision={precision}")
        inflight(stack, "add", stack.model, str(model), *chosen)
        load(stack, version, precision)
    tried: list[Tried] = []

    def roll_out(what: tuple[str, str], per_s: float, running: Traffic, *options: str) -> None:
        version, precision = what
        before = len(running.of(version))
        ended = rollout(stack, version, (*PLAN, *options), MOST_S)
        if not ended.state.is_over:
            inflight(stack, "rollback", stack.model, "--reason", "out of time")
        goal = RolloutState.PROMOTED if what == GOOD else RolloutState.ROLLED_BACK
        called = f"{precision}, {'not rehearsed' if options else 'rehearsed'}"
        tried.append(Tried(called, per_s, ended, len(running.of(version)) - before, goal))
        print(" | ".join(tried[-1].cells), flush=True)

    with traffic(stack.url, completion(stack.model, TOKENS), FEW_PER_S) as few:
        few.wait_for(10)
        # So it stays loaded when it is refused the first time.
        inflight(stack, "split", stack.model, "1=100%", f"{SLOW[0]}=0%")
        roll_out(SLOW, FEW_PER_S, few)
        roll_out(SLOW, FEW_PER_S, few, "--no-rehearsal")
        load(stack, *SLOW)
    with traffic(stack.url, completion(stack.model, TOKENS), PER_S) as running:
        running.wait_for(100)
        roll_out(SLOW, PER_S, running, "--no-rehearsal")
        roll_out(GOOD, PER_S, running)
        running.wait_for(100)
        killed_s = kill_and_go_back(stack, running) if tried[-1].is_met else None
        events = history(stack, running.began_s)
    if keep is not None:
        kept = {"answered": [asdict(each) for each in running.answered], "events": list(map(asdict, events))}
        keep.write_text(json.dumps(kept))
    show(Console(width=160), running, events)
    table = Table(*COLUMNS)
    for each in tried:
        table.add_row(*each.cells)
    Console(width=160).print(table)
    if killed_s is not None:
        hit = sum(each.at_s <= killed_s <= each.at_s + each.took_s for each in running.answered)
        longest_s = max(each.took_s for each in running.answered)
        print(f"killed at {killed_s:.1f} s, {hit} streams in flight; longest answer {longest_s:.1f} s")
    failed = running.errors + few.errors
    requests = len(running.answered) + len(few.answered)
    print(f"{len(failed)} of {requests:,} requests failed (goal: none)", *failed[:3])
    is_met = not failed and all(each.is_met for each in tried)
    print("every goal met" if is_met else "a goal is MISSED")
    return is_met


def load(stack: RunningStack, version: str, precision: str) -> None:
    began_s = time.monotonic()
    inflight(stack, "load", f"{stack.model}@{version}")
    print(f"{precision}: loaded in {time.monotonic() - began_s:.1f} s", flush=True)


def kill_and_go_back(stack: RunningStack, running: Traffic) -> float:
    """The engine of the release that was promoted; when that was, since the traffic began."""
    killed_s = kill_engine(stack, f"{stack.model}.{GOOD[0]}.tensorrt_llm") - running.began_s
    running.wait_for(400, timeout_s=120)
    inflight(stack, "rollback", stack.model)
    running.wait_for(100)
    return killed_s


def read(file: Path) -> tuple[Traffic, list[Event]]:
    kept = json.loads(file.read_text())
    answered = [Answered(**each) for each in kept["answered"]]
    return Traffic(0.0, answered, len(answered)), [Event(**each) for each in kept["events"]]


if __name__ == "__main__":
    main()
