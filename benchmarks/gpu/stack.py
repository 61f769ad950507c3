"""`python -m benchmarks.gpu.stack`: the whole stack on a GPU against the engine alone, in one run."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.llama_8b import RANDOM_WEIGHTS, write_checkpoint
from benchmarks.gpu.throughput import DEFAULTS
from benchmarks.stack import RunningStack, start_stack, wait_until_ready
from loadtest.percentiles import percentile
from loadtest.replay.clients import send_from
from loadtest.replay.plan import PlannedRequest
from loadtest.replay.sender import SendResult, Target, send

PROMPT_TOKENS, NEW_TOKENS = 512, 256
SINGLE_RUNS = 9
GOAL_SHARE, GOAL_FIRST_TOKEN_MS, GOAL_SILENCE_MS, GOAL_READY_S = 0.95, 20.0, 250.0, 60.0


@dataclass(frozen=True)
class Alone:
    tokens_per_s: float
    first_token_ms: float


def engine_alone(streams: int, step_tokens: int) -> Alone:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu.throughput", "--json", "-"]
    command += ["--points", f"1,{streams}", "--step-tokens", str(step_tokens), "--repeats", "3"]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = json.loads(output.splitlines()[-1])
    rates = [row["tokens_per_s"] for row in found if row["requests"] == streams]
    firsts = [row["first_token_ms"] for row in found if row["requests"] == 1]
    return Alone(sorted(rates)[len(rates) // 2], sorted(firsts)[len(firsts) // 2])


def plan(streams: int, seed: int) -> list[PlannedRequest]:
    dice = random.Random(seed)
    prompts = (" ".join(f"w{dice.randrange(128000)}" for _ in range(PROMPT_TOKENS)) for _ in range(streams))
    return [PlannedRequest(0.0, prompt, NEW_TOKENS, "stream") for prompt in prompts]


def run_streams(target: Target, streams: int, clients: int) -> SendResult:
    """From several processes, so that none of them is what is measured."""
    return send_from(target, plan(streams, 1000), clients)


def report(stack: RunningStack, ready_s: float, alone: Alone | None, streams: int, clients: int) -> bool:
    target = Target(stack.url, stack.model, tells_tier=False)
    asyncio.run(send(target, plan(2, 1)))
    singles = [asyncio.run(send(target, plan(1, 10 + run))) for run in range(SINGLE_RUNS)]
    first_ms = 1000 * percentile(sorted(one.results[0].first_token_s or 0.0 for one in singles), 0.5)
    many = run_streams(target, streams, clients)
    if many.errors:
        raise RuntimeError(f"{len(many.errors)} streams failed: {many.errors[0]}")
    silences_ms = sorted(1000 * each.longest_gap_s for each in many.results)
    firsts_ms = sorted(1000 * (each.first_token_s or 0.0) for each in many.results)
    print(f"start to ready: {ready_s:.1f} s (goal {GOAL_READY_S:.0f})")
    print(f"one stream: first token {first_ms:.1f} ms p50, {singles[-1].tokens_per_s:.0f} tok/s")
    print(
        f"{streams} streams: {many.tokens:,} tokens, {many.tokens_per_s:,.0f} tok/s, "
        f"{many.tokens / many.pieces:.2f} tokens a chunk, "
        f"first token p50 {percentile(firsts_ms, 0.5):.0f} ms, "
        f"longest silence p50 {percentile(silences_ms, 0.5):.0f}, p99 {percentile(silences_ms, 0.99):.0f}, "
        f"of all {silences_ms[-1]:.0f} ms (goal {GOAL_SILENCE_MS:.0f})"
    )
    is_met = silences_ms[-1] <= GOAL_SILENCE_MS and ready_s <= GOAL_READY_S
    if alone is not None:
        share, more_ms = many.tokens_per_s / alone.tokens_per_s, first_ms - alone.first_token_ms
        print(
            f"engine alone: {alone.tokens_per_s:,.0f} tok/s, first token {alone.first_token_ms:.1f} ms; "
            f"the stack gives {share:.1%} of it (goal {GOAL_SHARE:.0%}), first token {more_ms:+.1f} ms "
            f"(goal {GOAL_FIRST_TOKEN_MS:+.0f})"
        )
        is_met &= share >= GOAL_SHARE and more_ms <= GOAL_FIRST_TOKEN_MS
    print("every goal met" if is_met else "a goal is MISSED")
    return is_met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--clients", type=int, default=4, help="processes that hold the streams")
    parser.add_argument("--step-tokens", type=int, default=DEFAULTS.max_step_tokens)
    parser.add_argument("--without-alone", action="store_true", help="do not run the engine alone first")
    parser.add_argument(
        "--synthetic", type=int, help="tokens/s of an engine without a model, to try the path"
    )
    arguments = parser.parse_args()
    is_synthetic = arguments.synthetic is not None
    engine = {"inflight_max_step_tokens": str(arguments.step_tokens)}
    if is_synthetic:
        engine |= {
            "inflight_runtime": "synthetic",
            "inflight_synthetic_tokens_per_s": str(arguments.synthetic),
        }
    else:
        engine |= {**RANDOM_WEIGHTS, "inflight_max_sequence_tokens": "8192"}
    skips_alone = is_synthetic or arguments.without_alone
    alone = None if skips_alone else engine_alone(arguments.streams, arguments.step_tokens)
    with tempfile.TemporaryDirectory() as folder:
        model = write_checkpoint(Path(folder) / "llama-8b")
        if is_synthetic:
            (model / "model.safetensors").touch()  # asked for, and not read
        begin = time.monotonic()
        stack = start_stack(Path(folder), engine, str(model), Path(folder) / "data")
        try:
            wait_until_ready(stack)
            ready_s = time.monotonic() - begin
            is_met = report(stack, ready_s, alone, arguments.streams, arguments.clients)
        except BaseException:
            print(stack.output()[-6000:])
            raise
        finally:
            stack.stop()
    sys.exit(not is_met)


if __name__ == "__main__":
    main()
