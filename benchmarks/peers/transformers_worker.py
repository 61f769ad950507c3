"""transformers in fp32: python -m benchmarks.peers.transformers_worker MODEL generate|continuous."""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.utils import logging

from benchmarks.peers.workload import (
    LONG_PROMPT,
    LONG_PROMPT_TOKENS,
    NEW_TOKENS,
    PARALLEL,
    THREADS,
    decoding,
    prompts,
    tell,
)
from benchmarks.transformers_model import load_in_transformers


def generate(model: Any, asked: list[list[int]], new_tokens: int) -> float:
    ids = torch.tensor(asked)
    began_s = time.perf_counter()
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        do_sample=False,
    )
    return time.perf_counter() - began_s


def continuous(model: Any, asked: list[list[int]], new_tokens: int) -> float:
    configuration: Any = GenerationConfig
    settings = configuration(max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    began_s = time.perf_counter()
    answers = model.generate_batch(inputs=asked, generation_config=settings)
    took_s = time.perf_counter() - began_s
    if any(len(answer.generated_tokens) != new_tokens for answer in answers.values()):
        raise RuntimeError("transformers returned fewer tokens than requested")
    return took_s


WAYS = {"generate": generate, "continuous": continuous}


@torch.no_grad()
def main(path: str, way: str) -> None:
    torch.set_num_threads(THREADS)
    quiet: Any = logging.set_verbosity_error
    quiet()
    model = load_in_transformers(path)
    model.generation_config.eos_token_id = None
    run = WAYS[way]
    for parallel in (1, *PARALLEL):
        # What the prompt and the first token take is not decoding: measured apart and taken off.
        asked = prompts(parallel)
        start_s = run(model, asked, 1)
        tell(decoding(parallel), parallel * NEW_TOKENS, run(model, asked, 1 + NEW_TOKENS) - start_s)
    for _ in range(2):
        tell(LONG_PROMPT, LONG_PROMPT_TOKENS, run(model, prompts(1, LONG_PROMPT_TOKENS), 1))


if __name__ == "__main__":
    main(*sys.argv[1:])
