"""`python -m benchmarks.gpu.parity`: greedy ids of small random models on the GPU, against transformers."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

from python_backend.engine.build import build_engine
from python_backend.engine.engine import EngineConfig
from python_backend.engine.request import GenerationRequest
from tests.engine.checkpoints import VARIANTS, VOCABULARY, greedy_choices, random_variant, save


def main() -> None:
    wrong = 0
    for variant in sys.argv[1:] or VARIANTS:
        model = random_variant(variant)
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as directory:
            engine = build_engine(
                EngineConfig(
                    str(save(model, Path(directory))),
                    device="cuda",
                    precision="fp32",
                    max_tokens_in_kv_cache=2048,
                    max_batch_size=8,
                    max_step_tokens=64,
                )
            )
        dice = random.Random(variant)
        prompts = [[dice.randrange(VOCABULARY) for _ in range(n)] for n in (1, 15, 16, 17, 40, 90)]
        found: dict[int, list[int]] = {key: [] for key in range(len(prompts))}
        for key, prompt in enumerate(prompts):
            engine.add(key, GenerationRequest(prompt, 16))
        errors = []
        while engine.has_work:
            for event in engine.step():
                found[event.key] += event.token_ids
                if event.error:
                    errors.append(event.error)
            engine.pool.check()
        good = sum(answer == greedy_choices(model, prompts[key], answer) for key, answer in found.items())
        wrong += good < len(prompts)
        print(
            f"{variant}: {good} of {len(prompts)} {time.perf_counter() - begin:.1f} s {errors[:1]}",
            flush=True,
        )
    print("all equal" if not wrong else f"{wrong} differ")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
