"""`python -m benchmarks.gpu.host_tier`: a second turn whose first was pushed out of the GPU's cache.

Conversations of a few thousand tokens, more of them than the device's cache holds, come back one after the
other. Shown is the time to the first token of their second turns, where what left the device is gone and
where it is kept in the host's memory, beside a turn that is still on the device. The 8B shape.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.gpu.llama_8b import write_checkpoint
from python_backend.engine.build import build_engine
from python_backend.engine.config import EngineConfig
from python_backend.engine.engine import Engine
from python_backend.engine.request import GenerationRequest
from python_backend.wire.parameters import device_defaults

CONVERSATIONS, CACHED = 12, 4  # of them so many fit into the device's cache
TURN_TOKENS = 32


def first_token_ms(engine: Engine, key: int, prompt: list[int]) -> float:
    engine.add(key, GenerationRequest(prompt, 2))
    began_s, took_s = time.perf_counter(), 0.0
    while engine.has_work:
        for event in engine.step():
            assert event.error is None, event.error
            took_s = took_s or time.perf_counter() - began_s
    return 1000 * took_s


def measure(engine: Engine, tokens: int, dice: random.Random) -> tuple[float, float]:
    """Of second turns that left the device, and of one that just was there."""
    talks = [[dice.randrange(128_000) for _ in range(tokens)] for _ in range(CONVERSATIONS)]
    for key, talk in enumerate(talks):
        first_token_ms(engine, key, talk)
    turn = [dice.randrange(128_000) for _ in range(TURN_TOKENS)]
    back = [first_token_ms(engine, 100 + key, talk + turn) for key, talk in enumerate(talks)]
    at_once = first_token_ms(engine, 200, talks[-1] + turn + turn)
    return statistics.median(back), at_once


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", default="1000,4000,16000", help="of a conversation, comma-separated")
    asked = parser.parse_args()
    lengths = [int(each) for each in asked.tokens.split(",")]
    defaults = device_defaults("cuda")
    print("tokens    on the device   gone   from the host")
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        config = EngineConfig(
            str(write_checkpoint(Path(folder))),
            device="cuda",
            precision="bf16",
            random_weights=True,
            max_batch_size=8,
            max_step_tokens=defaults.max_step_tokens,
            tokens_per_block=defaults.tokens_per_block,
            max_sequence_tokens=max(lengths) + 512,
        )
        for tokens in lengths:
            found = {}
            for host_bytes in (None, 2 * CONVERSATIONS * (tokens + 512) * 131_072):
                room = CACHED * (tokens + 512)
                engine = build_engine(
                    replace(config, max_tokens_in_kv_cache=room, host_cache_bytes=host_bytes)
                )
                first_token_ms(engine, 1000, list(range(300)))
                found[host_bytes is not None] = measure(engine, tokens, random.Random(tokens))
                del engine
                torch.cuda.empty_cache()
            (gone, _), (recalled, at_once) = found[False], found[True]
            print(f"{tokens:6} {at_once:13.1f} ms {gone:9.1f} {recalled:12.1f} ms", flush=True)


if __name__ == "__main__":
    main()
