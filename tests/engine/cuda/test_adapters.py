"""Adapters in the GPU's engine: the ids of the models that they were merged into, in steps of every kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from python_backend.engine.config import EngineConfig
from python_backend.engine.request import GenerationRequest
from tests.engine.adapters.random_adapters import EVERYTHING, write_adapter
from tests.engine.checkpoints import greedy_choices, random_variant, save
from tests.engine.cuda.engines import build_cuda_engine
from tests.engine.drained import drain

NEW_TOKENS = 3
VOCABULARY = 64
pytestmark = pytest.mark.usefixtures("few_programs")


def test_a_batch_of_adapters_gives_the_ids_of_the_models_they_are_merged_into(
    device: str, tmp_path: Path
) -> None:
    model = random_variant("gemma2", vocab_size=VOCABULARY, intermediate_size=16, num_hidden_layers=2)
    checkpoint = save(model, tmp_path / "model")
    merged = {
        "": model,
        "one": write_adapter(model, tmp_path / "one", 3, EVERYTHING, seed=1, strength=0.1),
        "two": write_adapter(model, tmp_path / "two", 17, EVERYTHING, seed=2, strength=0.1),
        "three": write_adapter(model, tmp_path / "three", 8, ("v_proj",), seed=3, layers=(1,)),
    }
    config = EngineConfig(
        str(checkpoint),
        max_tokens_in_kv_cache=128,
        tokens_per_block=4,
        max_batch_size=4,
        max_step_tokens=12,
        precision="fp32",
        device=device,
        adapters_dir=str(tmp_path),
        max_adapters=2,
        max_adapter_rank=32,
    )
    engine = build_cuda_engine(config, device)
    wanted = {
        key: (name, [(3 * i + key) % VOCABULARY for i in range(2 + key)])
        for key, name in enumerate(["one", "", "two", "three", "one"])
    }
    for key, (name, prompt) in wanted.items():
        engine.add(key, GenerationRequest(prompt, NEW_TOKENS, adapter=name))
    answers = drain(engine)
    for key, (name, prompt) in wanted.items():
        assert len(answers[key][0]) == NEW_TOKENS, answers[key]
        assert answers[key][0] == greedy_choices(merged[name], prompt, answers[key][0]), name
    engine.add(9, GenerationRequest(wanted[2][1], NEW_TOKENS, adapter="two"))
    assert drain(engine)[9] == answers[2], "alone as in the batch"
