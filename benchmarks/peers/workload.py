"""What every engine is asked: so many prompts of 64 tokens at once, 64 new tokens each, ends ignored.

Standard library alone: llama.cpp's worker runs in an environment of its own.
"""

from __future__ import annotations

import json
import random
import sys

PROMPT_TOKENS, NEW_TOKENS = 64, 64
PARALLEL = (1, 8, 16)
THREADS = 2
_ORDINARY_IDS = range(1000, 40000)


def prompts(count: int) -> list[list[int]]:
    dice = random.Random(count)
    return [[dice.choice(_ORDINARY_IDS) for _ in range(PROMPT_TOKENS)] for _ in range(count)]


def tell(parallel: int, tokens: int, took_s: float) -> None:
    """One line for whoever started the worker."""
    print(json.dumps({"parallel": parallel, "tokens_per_s": tokens / took_s}))
    sys.stdout.flush()
