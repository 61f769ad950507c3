"""`python -m benchmarks.gpu.steps`: what a step takes, decoding alone and with prompts among it.

Contexts of 600 tokens, the 8B shape with all of its context length; a prompt comes every few steps and wants
one token. Shown is ms of a decoding step, and what a prompt adds.
"""

from __future__ import annotations

import argparse
import itertools
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.gpu.profile import drain, fill, until_all_decode
from benchmarks.gpu.throughput import add_engine_arguments, build
from python_backend.engine.engine import Engine
from python_backend.engine.request import GenerationRequest

CONTEXT, STEPS, EVERY = 600, 120, 4
FIRST_KEY = 1024  # beyond those of what decodes
_DICE = random.Random(1)


def prompt(tokens: int) -> list[int]:
    return [_DICE.randrange(128_000) for _ in range(tokens)]


def run(engine: Engine, steps: int) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        engine.step()
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - begin)


def with_prompts(engine: Engine, keys: Iterator[int], tokens: int) -> float:
    """ms that a prompt of so many tokens adds, beside what runs."""
    alone_ms = run(engine, STEPS)
    with_ms = 0.0
    for _ in range(STEPS // EVERY):
        engine.add(next(keys), GenerationRequest(prompt(tokens), 1))
        with_ms += run(engine, EVERY)
    return (with_ms - alone_ms) / (STEPS // EVERY)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", default="1,2,3,4,8,16,32,64,128,256")
    parser.add_argument("--prompts", default="64,330,900")
    parser.add_argument("--sequence-tokens", type=int, default=131_072)
    add_engine_arguments(parser)
    asked = parser.parse_args()
    keys = itertools.count(FIRST_KEY)
    lengths = [int(each) for each in asked.prompts.split(",")]
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        engine = build(asked, Path(folder), asked.sequence_tokens)
        for batch in map(int, asked.batches.split(",")):
            fill(engine, batch, CONTEXT, 2000)
            until_all_decode(engine)
            run(engine, 20)
            alone = min(run(engine, STEPS) / STEPS for _ in range(3))
            added = "  ".join(f"+{tokens}: {with_prompts(engine, keys, tokens):6.2f}" for tokens in lengths)
            print(f"{batch:4} decoding {alone:7.3f} ms   {added}", flush=True)
            drain(engine)


if __name__ == "__main__":
    main()
