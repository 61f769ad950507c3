"""What every engine is asked: so many prompts of 64 tokens at once, 64 new tokens each, ends ignored; and to
read one prompt of 512.

Standard library alone: llama.cpp's worker runs in an environment of its own.
"""

from __future__ import annotations

import json
import os
import random
import sys

PROMPT_TOKENS, NEW_TOKENS = 64, 64
PARALLEL = (1, 8, 16)
LONG_PROMPT_TOKENS = 512
THREADS = len(os.sched_getaffinity(0))
_ORDINARY_IDS = range(1000, 40000)


LONG_PROMPT = f"a prompt of {LONG_PROMPT_TOKENS}"


def decoding(parallel: int) -> str:
    return f"{parallel} parallel"


CASES = (*(decoding(parallel) for parallel in PARALLEL), LONG_PROMPT)


def prompts(count: int, tokens: int = PROMPT_TOKENS) -> list[list[int]]:
    dice = random.Random(count)
    return [[dice.choice(_ORDINARY_IDS) for _ in range(tokens)] for _ in range(count)]


def tell(case: str, tokens: int, took_s: float) -> None:
    """One line for whoever started the worker, who keeps the last of each case: the first may warm up."""
    print(json.dumps({"case": case, "tokens_per_s": tokens / took_s}))
    sys.stdout.flush()
