"""The GPU's engine against transformers: the same ids, for every family, in steps of every kind."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from python_backend.engine.engine import EngineConfig
from python_backend.engine.request import GenerationRequest
from tests.engine.checkpoints import VOCABULARY, greedy_choices, random_variant, save
from tests.engine.cuda.building import build_cuda_engine
from tests.engine.draining import drain
from tests.engine.models.test_greedy_ids import THOROUGH

NEW_TOKENS = 5


@pytest.mark.parametrize("variant", THOROUGH)
def test_alone_and_together_the_ids_are_those_of_transformers(
    variant: str, device: str, tmp_path: Path
) -> None:
    model = random_variant(variant)
    config = EngineConfig(
        str(save(model, tmp_path)),
        max_tokens_in_kv_cache=256,
        tokens_per_block=4,
        max_batch_size=4,
        max_step_tokens=16,
        precision="fp32",
        device=device,
    )
    engine = build_cuda_engine(config, device)
    dice = random.Random(variant)
    prompts = [[dice.randrange(VOCABULARY) for _ in range(length)] for length in (1, 9, 22)]
    for batch in ({0: prompts[2]}, dict(enumerate(prompts))):
        for key, prompt in batch.items():
            engine.add(key, GenerationRequest(prompt, NEW_TOKENS))
        for key, (answer, _) in drain(engine).items():
            assert answer == greedy_choices(model, batch[key], answer)
        engine.pool.check()
