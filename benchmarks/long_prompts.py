"""`python -m benchmarks.long_prompts`: what a long prompt does to answers that are under way beside it.

Three answers decode on the CPU while a prompt is computed, once with tokens behind a long context counted as
several, once with each counted as one, in turns.
"""

from __future__ import annotations

import argparse
import random
import time

from rich.console import Console

from benchmarks.default_model import default_model_path
from loadtest.percentiles import percentile
from python_backend.engine.build import build_engine
from python_backend.engine.config import EngineConfig
from python_backend.engine.engine import Engine
from python_backend.engine.request import GenerationRequest

_ANSWERS, _LONG = 3, 9
_WORDS = 40_000


def run(engine: Engine, prompt_tokens: int, dice: random.Random) -> tuple[float, list[float]]:
    """Seconds to the first token of the long prompt, and between tokens of the answers meanwhile."""

    def ask(key: int, prompt: int, answer: int) -> None:
        ids = [dice.randrange(_WORDS) for _ in range(prompt)]  # nothing of it is cached
        engine.add(key, GenerationRequest(ids, answer))

    for key in range(_ANSWERS):
        ask(key, 32, 1000)
    for _ in range(20):
        engine.step()
    begin, last = time.perf_counter(), dict.fromkeys(range(_ANSWERS), 0.0)
    gaps: list[float] = []
    ask(_LONG, prompt_tokens, 1)
    while True:
        for event in engine.step():
            now = time.perf_counter() - begin
            if event.key == _LONG:
                for key in range(_ANSWERS):
                    engine.cancel(key)
                while engine.has_work:
                    engine.step()
                return now, sorted(gaps)
            gaps.append(now - last[event.key])
            last[event.key] = now


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=int, default=7500, help="of the prompt")
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    engine = build_engine(EngineConfig(default_model_path(Console()), max_sequence_tokens=asked.tokens + 100))
    scheduler = engine._scheduler
    even_context = engine.limits.even_context
    for number in range(asked.rounds):
        for even, name in (
            (None, "each token counts as one"),
            (even_context, f"several behind {even_context}"),
        ):
            scheduler._even_context = even
            took_s, gaps = run(engine, asked.tokens, random.Random(f"{number} {name}"))
            print(
                f"{name:22} prompt {took_s:6.1f} s, between tokens {1000 * percentile(gaps, 0.5):6.0f} ms"
                f" p50, {1000 * gaps[-1]:6.0f} at most",
                flush=True,
            )


if __name__ == "__main__":
    main()
