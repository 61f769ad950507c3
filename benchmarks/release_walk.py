"""`python -m benchmarks.release_walk`: records the walk through a rollout that docs/releases.md shows."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from benchmarks.canaries import words
from benchmarks.releases import inflight, wait_for_end
from benchmarks.stack import RunningStack, start_stack, wait_until_ready
from benchmarks.text_checkpoint import SMOLLM2_135M, TINY, write_random_llama
from benchmarks.traffic import traffic
from router.control.releases.records import Rollout

NAME = "smollm2-135m-instruct"
SHAPES = {"135m": SMOLLM2_135M, "tiny": TINY}
PLAN = ("--steps", "20%,50%,100%", "--min-requests", "20", "--min-duration", "20s")
GOLDEN = {"prompt": "Name the capital of France.", "matches": ".", "max_tokens": 20}
MOST_S = 450.0


def walk(stack: RunningStack, path: Path, golden: Path, per_s: float) -> None:
    def say(*words: str) -> None:
        print(f"$ inflight release {' '.join(words)}\n{inflight(stack, *words)}", flush=True)

    is_told = False

    def tell_once(rollout: Rollout) -> None:
        """In the second step, when there is something to see."""
        nonlocal is_told
        if not is_told and rollout.progress.step == 1 and time.time() - rollout.progress.step_began_s > 8:
            is_told = True
            say("status", NAME, "--once")

    with traffic(stack.url, words(NAME), per_s, most_in_flight=24) as running:
        running.wait_for(20)
        say("add", NAME, str(path), "--set", "inflight_precision=int4", "--notes", "four bits")
        say("canary", f"{NAME}@2", *PLAN, "--golden", str(golden))
        wait_for_end(stack, NAME, MOST_S, tell_once)
        say("status", NAME, "--once")
        say("rollback", NAME, "--reason", "int4 answers are not good enough")
        say("history", NAME)
        running.wait_for(20)
    print(f"{len(running.answered)} requests, {len(running.errors)} of which failed")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.release_walk", description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="135m", help="of a model of random weights")
    parser.add_argument("--per-s", type=float, default=6.0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = write_random_llama(Path(folder) / NAME, SHAPES[asked.shape])
        golden = Path(folder) / "golden.jsonl"
        golden.write_text(json.dumps(GOLDEN) + "\n")
        engine = {"inflight_device": "cpu", "max_tokens_in_paged_kv_cache": "8192"}
        stack = start_stack(Path(folder), engine, str(path), Path(folder) / "data", embeddings=False)
        try:
            wait_until_ready(stack)
            walk(stack, path, golden, asked.per_s)
        except BaseException:
            print(stack.output()[-6000:])
            raise
        finally:
            stack.end()


if __name__ == "__main__":
    main()
