"""llama.cpp through llama-cpp-python's plain bindings: llama_worker.py MODEL.gguf [FORMAT TARGET.gguf].

With a target it requantises instead of measuring.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import llama_cpp as llama  # only in the worker's own environment
from workload import (
    LONG_PROMPT,
    LONG_PROMPT_TOKENS,
    NEW_TOKENS,
    PARALLEL,
    PROMPT_TOKENS,
    THREADS,
    decoding,
    prompts,
    tell,
)

# llama.cpp keeps only its address: the object must live as long as the process.
SILENCE = llama.llama_log_callback(lambda level, text, data: None)
FORMATS = {"q4_0": llama.LLAMA_FTYPE_MOSTLY_Q4_0, "q8_0": llama.LLAMA_FTYPE_MOSTLY_Q8_0}


def requantise(source: str, name: str, target: str) -> None:
    settings = llama.llama_model_quantize_default_params()
    settings.ftype = FORMATS[name]
    settings.allow_requantize = True
    settings.nthread = THREADS
    if llama.llama_model_quantize(source.encode(), target.encode(), settings) != 0:
        raise SystemExit(f"{source} could not be requantised")


def fill(batch: Any, rows: list[tuple[int, int, int, bool]]) -> None:
    """Rows of (token, position, sequence, whether its logits are wanted)."""
    batch.n_tokens = len(rows)
    for index, (token, position, sequence, wanted) in enumerate(rows):
        batch.token[index] = token
        batch.pos[index] = position
        batch.seq_id[index][0] = sequence
        batch.n_seq_id[index] = 1
        batch.logits[index] = wanted


def context_for(model: Any, parallel: int, tokens: int) -> Any:
    settings = llama.llama_context_default_params()
    settings.n_ctx = parallel * tokens
    settings.n_batch = settings.n_ubatch = 512
    settings.n_seq_max = parallel
    settings.n_threads = settings.n_threads_batch = THREADS
    return llama.llama_init_from_model(model, settings)


def read(model: Any) -> None:
    context = context_for(model, 1, 2 * LONG_PROMPT_TOKENS)
    sampler = llama.llama_sampler_init_greedy()
    batch = llama.llama_batch_init(LONG_PROMPT_TOKENS, 0, 1)
    last = LONG_PROMPT_TOKENS - 1
    (prompt,) = prompts(1, LONG_PROMPT_TOKENS)
    began_s = time.perf_counter()
    fill(batch, [(token, at, 0, at == last) for at, token in enumerate(prompt)])
    assert llama.llama_decode(context, batch) == 0
    llama.llama_sampler_sample(sampler, context, last)
    tell(LONG_PROMPT, LONG_PROMPT_TOKENS, time.perf_counter() - began_s)
    llama.llama_batch_free(batch)
    llama.llama_free(context)


def decode(model: Any, parallel: int) -> None:
    context = context_for(model, parallel, 256)
    sampler = llama.llama_sampler_init_greedy()
    batch = llama.llama_batch_init(512, 0, 1)
    latest = []
    for sequence, prompt in enumerate(prompts(parallel)):
        rows = [(token, at, sequence, at == PROMPT_TOKENS - 1) for at, token in enumerate(prompt)]
        fill(batch, rows)
        assert llama.llama_decode(context, batch) == 0
        latest.append(llama.llama_sampler_sample(sampler, context, PROMPT_TOKENS - 1))
    began_s = time.perf_counter()
    for step in range(NEW_TOKENS):
        position = PROMPT_TOKENS + step
        fill(batch, [(token, position, sequence, True) for sequence, token in enumerate(latest)])
        assert llama.llama_decode(context, batch) == 0
        latest = [llama.llama_sampler_sample(sampler, context, index) for index in range(parallel)]
    tell(decoding(parallel), parallel * NEW_TOKENS, time.perf_counter() - began_s)
    llama.llama_batch_free(batch)
    llama.llama_free(context)


def main(arguments: list[str]) -> None:
    llama.llama_log_set(SILENCE, None)
    llama.llama_backend_init()
    if len(arguments) == 3:
        requantise(*arguments)
        return
    model = llama.llama_model_load_from_file(arguments[0].encode(), llama.llama_model_default_params())
    for parallel in (1, *PARALLEL):
        decode(model, parallel)
    for _ in range(2):
        read(model)


if __name__ == "__main__":
    main(sys.argv[1:])
