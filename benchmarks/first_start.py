"""`python -m benchmarks.first_start`: what a first start compiles, alone and while it packs the weights.

Prepares a random model of SmolLM2-135M's shape as `inflight up` does, with an empty cache of kernels: once
with the weights packed already, and once without. `--against DIRECTORY` has another checkout take turns, so
that what else the machine does meets both. Processor seconds hardly depend on that, the others do. Exit
status 1: compiling takes 10 s or more.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.text_checkpoint import SMOLLM2_135M, write_random_llama

GOAL_S = 10.0
HERE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Took:
    wall_s: float
    processor_s: float


def prepare(tree: Path, model: Path, packed: Path, kernels: Path) -> Took:
    told = {"gpt_model_path": str(model), "inflight_packed_cache_dir": str(packed), "inflight_device": "cpu"}
    told["inflight_adapters_dir"] = str(packed / "adapters")
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "python_backend.engine.tasks.prepare", json.dumps(told)],
        env=os.environ | {"PYTHONPATH": str(tree), "NUMBA_CACHE_DIR": str(kernels)},
        cwd=tree,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    wall_s, after = time.perf_counter() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Took(wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def measure(tree: Path, model: Path, folder: Path) -> dict[str, Took]:
    """Each with a folder of its own; the last is what a start takes that finds everything but its receipt."""
    both = prepare(tree, model, folder / "packed", folder / "kernels")
    compiles = prepare(tree, model, folder / "packed", folder / "other-kernels")
    for receipt in (folder / "packed").glob(".prepared-*"):
        receipt.unlink()
    return {
        "packs and compiles": both,
        "compiles": compiles,
        "neither": prepare(tree, model, folder / "packed", folder / "kernels"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_start", description=__doc__)
    parser.add_argument("--against", type=Path, help="another checkout to alternate with")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    trees = {"this": HERE} | ({} if asked.against is None else {"other": asked.against.resolve()})
    found: dict[tuple[str, str], list[Took]] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = write_random_llama(Path(folder) / "model", SMOLLM2_135M)
        for number in range(asked.rounds):
            for name, tree in trees.items():
                for what, took in measure(tree, model, Path(folder) / f"{name}-{number}").items():
                    found.setdefault((name, what), []).append(took)
    for (name, what), times in found.items():
        wall_s, processor_s = (
            statistics.median(getattr(took, field) for took in times) for field in ("wall_s", "processor_s")
        )
        print(f"{name:6} {what:20} {wall_s:6.1f} s, {processor_s:6.1f} s of processors")
    extra_s = [
        compiles.wall_s - neither.wall_s
        for compiles, neither in zip(found["this", "compiles"], found["this", "neither"], strict=True)
    ]
    print(f"compiling adds {statistics.median(extra_s):.1f} s to a start; the goal is under {GOAL_S:.0f}")
    sys.exit(0 if statistics.median(extra_s) < GOAL_S else "the goal was missed")


if __name__ == "__main__":
    main()
