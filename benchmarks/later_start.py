"""`python -m benchmarks.later_start`: what a start costs that finds everything prepared, process by process.

Runs `inflight up` until it is ready. `--against DIRECTORY` has another checkout, installed there, take turns
with this one, so that what else the machine does meets both. The first start of each is not counted: it
leaves bytecode and a store behind.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import psutil

from benchmarks.stack import RunningStack, start_stack, wait_until_ready, words_of

HERE = Path(__file__).parents[1]
PARTS = {
    "router": "-m router",
    "engine": "engine.process.main",
    "preprocessing": " preprocessing_",
    "postprocessing": " postprocessing_",
    "embeddings": " embeddings_",
    "tensorrt_llm": " tensorrt_llm_",
    "Triton": "bin/tritonserver",
    "launcher": "-m launcher up",
}
ALL, READY = "all", "until ready"


def start(tree: Path, folder: Path) -> dict[str, float]:
    """Seconds of processors by part and in all, and until it is ready; its store stays in the folder."""
    began_s = time.perf_counter()
    stack = start_stack(folder, {}, checkout=tree)
    try:
        wait_until_ready(stack)
        ready_s = time.perf_counter() - began_s
        found = costs(stack)
        return {**found, ALL: sum(found.values()), READY: ready_s}
    finally:
        stack.end()


def costs(stack: RunningStack) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    launcher = psutil.Process(stack.process.pid)
    for process in (launcher, *stack.processes()):
        told, times = " ".join(words_of(process)), process.cpu_times()
        part = next((part for part, mark in PARTS.items() if mark in told), "other")
        found[part] += times.user + times.system
    children = launcher.cpu_times()  # what it ran and waited for
    found["other"] += children.children_user + children.children_system
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.later_start", description=__doc__)
    parser.add_argument("--against", type=Path, help="another checkout, installed, to alternate with")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    trees = {"this": HERE} | ({} if asked.against is None else {"other": asked.against.resolve()})
    found: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    with tempfile.TemporaryDirectory() as folder:
        for name in trees:
            (Path(folder) / name).mkdir()
        for number in range(asked.rounds + 1):
            for name, tree in trees.items():
                measured = start(tree, Path(folder) / name)
                print(f"{name:6} {measured[READY]:5.1f} s, {measured[ALL]:5.1f} s of processors", flush=True)
                found[name] += [measured] if number else []
    print("\nmedians", *(f"{name:>8}" for name in trees))
    for part in (*PARTS, "other", ALL, READY):
        medians = (statistics.median(each.get(part, 0.0) for each in starts) for starts in found.values())
        print(f"{part:15}", *(f"{seconds:6.2f} s" for seconds in medians))


if __name__ == "__main__":
    main()
