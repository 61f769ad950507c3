"""`python -m benchmarks.gpu.throughput`: output tokens/s of the engine alone, beside vLLM and the limit."""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.llama_8b import write_checkpoint
from python_backend.engine.build import build_engine
from python_backend.engine.config import EngineConfig
from python_backend.engine.engine import Engine
from python_backend.engine.request import GenerationRequest
from python_backend.wire.parameters import KV_PRECISIONS, device_defaults

DEFAULTS = device_defaults("cuda")


@dataclass(frozen=True)
class Point:
    """So many requests at once; vLLM 0.26.0 on such a GPU, and what bandwidth and arithmetic allow."""

    requests: int
    prompt_tokens: int
    vllm: int
    limit: int
    new_tokens: int = 256


POINTS = (
    Point(1, 512, 200, 274),
    Point(32, 512, 4385, 5954),
    Point(128, 512, 8705, 11935),
    Point(256, 512, 9835, 13381),
    Point(512, 512, 10282, 13381),
    Point(32, 4096, 1466, 1821),
    Point(128, 4096, 1750, 2151),
)


def run(engine: Engine, point: Point, seed: object) -> tuple[float, float, float]:
    """Seconds in all, to the first token of the first answer, and the longest step."""
    # Prompts of their own for every run: what an earlier one computed must not be found again.
    dice = random.Random(f"{point.requests} {point.prompt_tokens} {seed}")
    begin = time.perf_counter()
    for key in range(point.requests):
        prompt = [dice.randrange(128000) for _ in range(point.prompt_tokens)]
        engine.add(key, GenerationRequest(prompt, point.new_tokens))
    begin = time.perf_counter()
    first = longest = 0.0
    tokens = 0
    last = begin
    while engine.has_work:
        for event in engine.step():
            assert event.error is None, event.error
            tokens += len(event.token_ids)
            first = first or time.perf_counter() - begin
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    assert tokens == point.requests * point.new_tokens, tokens
    return time.perf_counter() - begin, first, longest


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_engine_arguments(parser)
    parser.add_argument(
        "--points", default="1,32,128,256,512,32x4096,128x4096", help="requests[xprompt], comma-separated"
    )
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument(
        "--json", help="also write every figure there; - is standard output, as its last line"
    )
    return parser.parse_args()


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--step-tokens", type=int, default=DEFAULTS.max_step_tokens, help="budget of a step")
    parser.add_argument("--block", type=int, default=DEFAULTS.tokens_per_block, help="tokens of a block")
    parser.add_argument("--precision", default="bf16", choices=("bf16", "fp8"))
    parser.add_argument("--kv", default="auto", choices=KV_PRECISIONS["cuda"], help="keys and values")
    parser.add_argument("--no-graphs", action="store_true")


def build(arguments: argparse.Namespace, directory: Path, sequence_tokens: int = 8192) -> Engine:
    begin = time.perf_counter()
    stages: dict[str, float] = {}

    def progress(stage: str, done: int, total: int) -> None:
        stages[stage] = time.perf_counter() - begin

    engine = build_engine(
        EngineConfig(
            str(write_checkpoint(directory)),
            device="cuda",
            precision=arguments.precision,
            kv_precision=arguments.kv,
            random_weights=True,
            max_batch_size=DEFAULTS.max_batch_size,
            max_step_tokens=arguments.step_tokens,
            tokens_per_block=arguments.block,
            max_sequence_tokens=sequence_tokens,
            cuda_graphs=not arguments.no_graphs,
        ),
        progress,
    )
    print(
        f"engine ready after {time.perf_counter() - begin:.1f} s:",
        ", ".join(f"{name} by {s:.1f}" for name, s in stages.items()),
    )
    print(
        f"keys and values: {engine.pool.tokens_held(engine.limits.max_sequence_tokens):,} tokens", flush=True
    )
    return engine


def report(engine: Engine, points: Iterable[Point], repeats: int) -> list[dict[str, float]]:
    print("requests x prompt    tok/s   vLLM  ratio  limit  share  first token ms  longest step ms")
    found = []
    for point in points:
        for repeat in range(repeats):
            took_s, first_s, longest_s = run(engine, point, repeat)
            rate = point.requests * point.new_tokens / took_s
            print(
                f"{point.requests:8} x {point.prompt_tokens:<6} {rate:8,.0f} {point.vllm:6,}"
                f" {rate / point.vllm:6.2f} {point.limit:6,} {rate / point.limit:6.2f}"
                f" {first_s * 1000:15.1f} {longest_s * 1000:16.1f}",
                flush=True,
            )
            found.append(
                {
                    "requests": point.requests,
                    "prompt_tokens": point.prompt_tokens,
                    "tokens_per_s": rate,
                    "first_token_ms": first_s * 1000,
                    "longest_step_ms": longest_s * 1000,
                }
            )
    return found


def main() -> None:
    arguments = parse_arguments()
    wanted = {tuple(map(int, (name + "x512").split("x")[:2])) for name in arguments.points.split(",")}
    points = [point for point in POINTS if (point.requests, point.prompt_tokens) in wanted]
    with tempfile.TemporaryDirectory() as directory:
        engine = build(arguments, Path(directory))
        run(engine, Point(4, 300, 0, 0, 8), "warm-up")
        found = report(engine, points, arguments.repeats)
    if arguments.json == "-":
        print(json.dumps(found))
    elif arguments.json:
        Path(arguments.json).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
