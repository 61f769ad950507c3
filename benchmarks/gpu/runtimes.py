"""`python -m benchmarks.gpu.runtimes --vllm PYTHON`: the stack around vLLM against `vllm serve`, in one run.

The same weights, none, the same prompts and the same clients, one after the other on the same GPU.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.llama_8b import write_checkpoint
from benchmarks.gpu.stack import plan, run_streams
from benchmarks.gpu.vllm_server import running_vllm
from benchmarks.stack import running_stack
from launcher.packaging.runtimes.environment import note_environment
from loadtest.percentiles import percentile
from loadtest.replay.sender import Target, send

SEQUENCE_TOKENS = 8192
SINGLE_RUNS = 9
GOAL_SHARE, GOAL_FIRST_TOKEN_MS = 0.95, 10.0


@dataclass(frozen=True)
class Figures:
    """`first_ms` is of one stream alone, `crowd_first_ms` the median among all."""

    tokens_per_s: float
    first_ms: float
    crowd_first_ms: float

    def __str__(self) -> str:
        return (
            f"{self.tokens_per_s:,.0f} tok/s, first token {self.first_ms:.1f} ms alone, "
            f"{self.crowd_first_ms:.0f} ms among all"
        )


def measure(target: Target, streams: int, clients: int, repeats: int) -> Figures:
    asyncio.run(send(target, plan(2, 1)))
    singles = [asyncio.run(send(target, plan(1, 10 + run))) for run in range(SINGLE_RUNS)]
    runs = [run_streams(target, streams, clients) for _ in range(repeats)]
    for each in runs:
        if each.errors:
            raise RuntimeError(f"{len(each.errors)} streams failed: {each.errors[0]}")
    best = sorted(runs, key=lambda each: each.tokens_per_s)[len(runs) // 2]
    firsts_ms = sorted(1000 * (each.first_token_s or 0.0) for each in best.results)
    alone_ms = sorted(1000 * (one.results[0].first_token_s or 0.0) for one in singles)
    return Figures(best.tokens_per_s, percentile(alone_ms, 0.5), percentile(firsts_ms, 0.5))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", required=True, help="a Python that has vLLM")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--clients", type=int, default=4, help="processes that hold the streams")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--step-tokens", type=int, default=8192, help="as `vllm serve` sets it on a large GPU"
    )
    arguments = parser.parse_args()
    how = (arguments.streams, arguments.clients, arguments.repeats)
    with tempfile.TemporaryDirectory() as folder:
        model = write_checkpoint(Path(folder) / "llama-8b")
        data = Path(folder) / "data"
        print(note_environment("vllm", Path(arguments.vllm), data / "runtimes"))
        with running_vllm(arguments.vllm, model, SEQUENCE_TOKENS, "bf16") as (url, _):
            served = measure(Target(url, str(model), tells_tier=False), *how)
        print(f"vllm serve: {served}")
        engine = {
            "inflight_runtime": "vllm",
            "inflight_weights": "random",
            "inflight_precision": "bf16",
            "inflight_max_sequence_tokens": str(SEQUENCE_TOKENS),
            "inflight_max_step_tokens": str(arguments.step_tokens),
        }
        with running_stack(engine, str(model), data, embeddings=False) as stack:
            ours = measure(Target(stack.url, stack.model, tells_tier=False), *how)
    share, more_ms = ours.tokens_per_s / served.tokens_per_s, ours.first_ms - served.first_ms
    print(f"the stack:  {ours}")
    print(
        f"{share:.1%} of vllm serve (goal {GOAL_SHARE:.0%}), first token {more_ms:+.1f} ms "
        f"(goal {GOAL_FIRST_TOKEN_MS:+.0f})"
    )
    return 0 if share >= GOAL_SHARE and more_ms <= GOAL_FIRST_TOKEN_MS else 1


if __name__ == "__main__":
    sys.exit(main())
