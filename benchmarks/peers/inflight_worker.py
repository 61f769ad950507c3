"""This engine, scheduler and sampling included: inflight_worker MODEL PRECISION."""

from __future__ import annotations

import sys
import time

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
from python_backend.engine.build import build_engine
from python_backend.engine.config import EngineConfig
from python_backend.engine.engine import Engine
from python_backend.engine.request import GenerationRequest


def decode(engine: Engine, parallel: int) -> None:
    for key, prompt in enumerate(prompts(parallel)):
        engine.add(key, GenerationRequest(prompt, NEW_TOKENS + 1))
    begun: set[int] = set()
    while len(begun) < parallel:
        begun |= {event.key for event in engine.step()}
    # Prompts of one step begin together; whoever began earlier has tokens that do not count.
    tokens = 0
    began_s = time.perf_counter()
    while engine.has_work:
        tokens += sum(len(event.token_ids) for event in engine.step())
    tell(decoding(parallel), tokens, time.perf_counter() - began_s)


def read(engine: Engine) -> None:
    (prompt,) = prompts(1, LONG_PROMPT_TOKENS)
    began_s = time.perf_counter()
    engine.add(0, GenerationRequest(prompt, 1))
    while engine.has_work:
        engine.step()
    tell(LONG_PROMPT, LONG_PROMPT_TOKENS, time.perf_counter() - began_s)


def main(model: str, precision: str) -> None:
    config = EngineConfig(
        model,
        precision=precision,
        threads=THREADS,
        max_sequence_tokens=1024,
        max_tokens_in_kv_cache=8192,
        max_step_tokens=2048,
        enable_kv_cache_reuse=False,
    )
    engine = build_engine(config)
    for parallel in (1, *PARALLEL):
        decode(engine, parallel)
    for _ in range(2):
        read(engine)


if __name__ == "__main__":
    main(*sys.argv[1:])
