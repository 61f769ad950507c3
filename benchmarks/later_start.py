"""`python -m benchmarks.later_start`: what a start costs that finds everything prepared, process by process.

Runs `inflight up` until it is ready, with the settings of a new user. `--against DIRECTORY` has another
checkout, installed there, take turns with this one, so that what else the machine does meets both. The first
start of each is not counted: it leaves bytecode behind.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import time
from collections import defaultdict
from pathlib import Path

import psutil

HERE = Path(__file__).parents[1]
PARTS = {
    "router": "-m router",
    "engine": "engine.process.main",
    "preprocessing": " preprocessing_",
    "postprocessing": " postprocessing_",
    "embeddings": " embeddings_",
    "tensorrt_llm": " tensorrt_llm_",
    "Triton": "bin/tritonserver",
    "launcher": "inflight up",
}


def start(tree: Path, port: int) -> tuple[float, dict[str, float]]:
    """Seconds until it is ready, and seconds of processors by part."""
    began_s = time.perf_counter()
    command = [str(tree / ".venv/bin/inflight"), "up", "--port", str(port)]
    with subprocess.Popen(command, cwd=tree, stdout=subprocess.PIPE, text=True) as launcher:
        try:
            if not any("is ready" in line for line in launcher.stdout or ()):
                raise SystemExit(f"{tree}: the stack did not start: run {' '.join(command)}")
            return time.perf_counter() - began_s, costs(psutil.Process(launcher.pid))
        finally:
            launcher.terminate()
            launcher.communicate()


def costs(launcher: psutil.Process) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for process in (launcher, *launcher.children(recursive=True)):
        told, times = " ".join(process.cmdline()), process.cpu_times()
        part = next((part for part, mark in PARTS.items() if mark in told), "other")
        found[part] += times.user + times.system
        if process == launcher:  # what it ran and waited for
            found["other"] += times.children_user + times.children_system
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.later_start", description=__doc__)
    parser.add_argument("--against", type=Path, help="another checkout, installed, to alternate with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--port", type=int, default=18080)
    asked = parser.parse_args()
    trees = {"this": HERE} | ({} if asked.against is None else {"other": asked.against.resolve()})
    found: dict[str, list[tuple[float, dict[str, float]]]] = {name: [] for name in trees}
    for number in range(asked.rounds + 1):
        for name, tree in trees.items():
            measured = start(tree, asked.port)
            print(
                f"{name:6} {measured[0]:5.1f} s, {sum(measured[1].values()):5.1f} s of processors", flush=True
            )
            found[name] += [measured] if number else []
    print("\nmedians", *(f"{name:>8}" for name in trees))
    for part in (*PARTS, "other"):
        by_tree = (statistics.median(cost.get(part, 0.0) for _, cost in each) for each in found.values())
        print(f"{part:15}", *(f"{seconds:6.2f} s" for seconds in by_tree))
    print(
        f"{'all':15}",
        *(f"{statistics.median(sum(c.values()) for _, c in each):6.2f} s" for each in found.values()),
    )
    print(
        f"{'until ready':15}", *(f"{statistics.median(s for s, _ in each):6.2f} s" for each in found.values())
    )


if __name__ == "__main__":
    main()
