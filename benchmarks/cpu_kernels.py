"""The engine's CPU kernels against torch, on random weights: python -m benchmarks.cpu_kernels.

Needs no checkpoint and no network, so that it can be run on any machine before anything is served there. It
also tells whether the kernels are right: fp32 logits are held against torch's, and the other formats against
fp32.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.plots import Plots
from benchmarks.random_weights import SMOLLM2_135M, RandomWeights
from benchmarks.torch_model.model import TorchModel
from python_backend.engine.kv.table import BlockTable
from python_backend.engine.native.microkernel import Format
from python_backend.engine.native.model import NativeModel
from python_backend.engine.native.weights import map_packed, write_packed
from python_backend.engine.request import GenerationRequest
from python_backend.engine.scheduling.plan import Chunk
from python_backend.engine.sequence import Sequence
from python_backend.engine.steps.executor import StepModel

BLOCKS, TOKENS_PER_BLOCK = 1200, 16
PROMPT_TOKENS, STEPS = 64, 24
BATCHES = (1, 2, 3, 4, 6, 8, 16)
PREFILL_TOKENS = 512
# fp32 sums in another order, and weights and rows rounded to bytes over 30 layers.
ALLOWED = {"torch fp32": 0.0, "fp32": 1e-3, "int8": 0.1, "int4": 0.6}


@dataclass(frozen=True)
class Measured:
    tokens_per_s: dict[int, float]
    prefill_tokens_per_s: float
    logits: NDArray[np.float32]


def sequence(key: int, tokens: int) -> Sequence:
    dice = np.random.default_rng(key)
    prompt = dice.integers(0, SMOLLM2_135M.vocabulary, tokens).tolist()
    made = Sequence(key, key, GenerationRequest(prompt, 1), 1)
    made.table = BlockTable()
    per_sequence = BLOCKS // max(BATCHES)
    made.table.blocks = list(range(key * per_sequence, (key + 1) * per_sequence))
    return made


def measure(model: StepModel) -> Measured:
    tokens = PROMPT_TOKENS + STEPS
    sequences = [sequence(key, tokens) for key in range(max(BATCHES))]
    for one in sequences:
        model.forward([Chunk(one, 0, PROMPT_TOKENS)], [], [PROMPT_TOKENS - 1])
    rates = {}
    for batch in BATCHES:
        took_s = []
        for position in range(PROMPT_TOKENS, tokens):
            began_s = time.perf_counter()
            logits = model.forward(
                [Chunk(one, position, 1) for one in sequences[:batch]], [], list(range(batch))
            )
            took_s.append(time.perf_counter() - began_s)
        rates[batch] = batch / float(np.median(took_s))
    long = sequence(0, PREFILL_TOKENS)
    began_s = time.perf_counter()
    model.forward([Chunk(long, 0, PREFILL_TOKENS)], [], [PREFILL_TOKENS - 1])
    return Measured(rates, PREFILL_TOKENS / (time.perf_counter() - began_s), logits)


def native(kind: Format, directory: Path, threads: int) -> NativeModel:
    weights = RandomWeights(SMOLLM2_135M)
    write_packed(weights, kind, directory / kind.name)
    arrays = map_packed(directory / kind.name, weights.shape, kind)
    model = NativeModel(weights.shape, arrays, kind, BLOCKS, TOKENS_PER_BLOCK, 8192, threads)
    model.warm_up()
    return model


def report(console: Console, plots: Plots) -> bool:
    threads = len(os.sched_getaffinity(0))
    console.print(
        f"Kernels on random weights of SmolLM2-135M's shape, {threads} threads, contexts of 64 to 88"
    )
    measured = {
        "torch fp32": measure(TorchModel(RandomWeights(SMOLLM2_135M), BLOCKS, TOKENS_PER_BLOCK, threads))
    }
    with tempfile.TemporaryDirectory(prefix="inflight-kernels-") as folder:
        for kind in Format:
            model = native(kind, Path(folder), threads)
            measured[kind.name.lower()] = measure(model)
            model.close()
    table = Table("tok/s, batches of", *map(str, BATCHES), "prompt", "logits off by")
    reference = measured["torch fp32"].logits
    are_right = True
    for name, result in measured.items():
        off = float(np.sqrt(((result.logits - reference) ** 2).mean() / (reference**2).mean()))
        are_right &= off <= ALLOWED[name]
        rates = [f"{rate:.0f}" for rate in result.tokens_per_s.values()]
        table.add_row(name, *rates, f"{result.prefill_tokens_per_s:.0f}", f"{off:.1e}")
    console.print(table)
    if not are_right:
        console.print("The kernels are wrong on this machine: serve with a build of torch, and report this.")
    return are_right


if __name__ == "__main__":
    raise SystemExit(0 if report(Console(width=110), Plots()) else 1)
