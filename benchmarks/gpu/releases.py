"""`python -m benchmarks.gpu.releases`: releases of an 8B model rolled out, killed and revived on one GPU.

On the GPU's host `--keep FILE` keeps what was seen; elsewhere `--draw FILE` makes the plot of it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.gpu.llama_8b import write_checkpoint
from benchmarks.plots import Plots
from benchmarks.releases import Event, draw, history, inflight, kill_engine, rollout, show
from benchmarks.stack import RunningStack, start_stack, wait_until_ready
from benchmarks.traffic import Answered, Traffic, completion, traffic
from router.control.releases.records import Rollout, RolloutState

PER_S, FEW_PER_S, TOKENS = 20.0, 2.0, 64
PLAN = ("--steps", "20%,50%,100%", "--min-requests", "20", "--min-duration", "20s")
# All fit beside each other; random weights, for nobody reads the answers.
ENGINE = {"inflight_weights": "random", "kv_cache_free_gpu_mem_fraction": "0.2"}
GOOD, SLOW = ("2", "fp8"), ("3", "fp32")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="where to write what was seen, as JSON")
    parser.add_argument("--draw", type=Path, help="draw what such a file holds, and measure nothing")
    parser.add_argument("--plots", type=Path, default=Path("docs/plots"), help="where to draw it")
    asked = parser.parse_args()
    if asked.draw:
        running, events = read(asked.draw)
        draw(Plots(asked.plots), "releases", running, events)
        return
    with tempfile.TemporaryDirectory() as folder:
        model = write_checkpoint(Path(folder) / "llama-8b")
        stack = start_stack(Path(folder), ENGINE, str(model), Path(folder) / "data")
        try:
            wait_until_ready(stack)
            is_met = measure(stack, model, asked.keep)
        except BaseException:
            print(stack.output()[-6000:])
            raise
        finally:
            stack.stop()
    sys.exit(not is_met)


def measure(stack: RunningStack, model: Path, keep: Path | None) -> bool:
    for version, precision in (GOOD, SLOW):
        began_s = time.monotonic()
        chosen = ("--version", version, "--set", f"inflight_precision={precision}")
        inflight(stack, "add", stack.model, str(model), *chosen)
        inflight(stack, "load", f"{stack.model}@{version}")
        print(f"{precision}: added and loaded in {time.monotonic() - began_s:.1f} s", flush=True)
    tried: list[tuple[str, float, Rollout, int]] = []

    def roll_out(what: tuple[str, str], per_s: float, running: Traffic, *plan: str) -> None:
        """With how many requests it met until then."""
        before = len(running.of(what[0]))
        ended = rollout(stack, what[0], plan)
        tried.append((what[1], per_s, ended, len(running.of(what[0])) - before))
        print(what[1], per_s, ended.state.value, ended.reason, flush=True)

    with traffic(stack.url, completion(stack.model, TOKENS), FEW_PER_S) as few:
        few.wait_for(10)
        # So it stays loaded when it is refused.
        inflight(stack, "split", stack.model, "1=100%", f"{SLOW[0]}=0%")
        roll_out(SLOW, FEW_PER_S, few, *PLAN)
        roll_out(SLOW, FEW_PER_S, few, *PLAN, "--no-rehearsal")
    with traffic(stack.url, completion(stack.model, TOKENS), PER_S) as running:
        running.wait_for(100)
        roll_out(SLOW, PER_S, running, *PLAN, "--no-rehearsal")
        roll_out(GOOD, PER_S, running, *PLAN)
        running.wait_for(100)
        killed_s = kill_engine(stack, f"{stack.model}.2.tensorrt_llm") - running.began_s
        running.wait_for(400, timeout_s=120)
        inflight(stack, "rollback", stack.model)
        running.wait_for(100)
        events = history(stack, running.began_s)
    if keep is not None:
        kept = {"answered": [asdict(each) for each in running.answered], "events": list(map(asdict, events))}
        keep.write_text(json.dumps(kept))
    show(Console(width=160), running, events)
    tell(tried)
    hit = [each for each in running.answered if each.at_s <= killed_s <= each.at_s + each.took_s]
    longest_s = max(each.took_s for each in running.answered)
    print(
        f"killed at {killed_s:.1f} s, {len(hit)} streams under way; longest of all answers {longest_s:.1f} s"
    )
    wanted = [RolloutState.ROLLED_BACK] * 3 + [RolloutState.PROMOTED]
    is_met = [each.state for _, _, each, _ in tried] == wanted and not (running.errors or few.errors)
    print("every goal met" if is_met else f"a goal is MISSED: {(running.errors + few.errors)[:3]}")
    return is_met


def tell(tried: Sequence[tuple[str, float, Rollout, int]]) -> None:
    table = Table("canary", "requests/s", "ended", "met it", "seconds", "reason")
    for precision, per_s, ended, requests in tried:
        took_s = (ended.ended_s or time.time()) - ended.began_s
        table.add_row(
            precision, f"{per_s:g}", ended.state.value, f"{requests}", f"{took_s:.0f}", ended.reason
        )
    Console(width=160).print(table)


def read(file: Path) -> tuple[Traffic, list[Event]]:
    kept = json.loads(file.read_text())
    answered = [Answered(**each) for each in kept["answered"]]
    return Traffic(0.0, answered, len(answered)), [Event(**each) for each in kept["events"]]


if __name__ == "__main__":
    main()
