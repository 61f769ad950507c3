"""The GPU's engine against transformers: the same ids, in steps of every kind.

On a GPU, `tests/engine/models` does the same with every variant of every family, and longer.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from python_backend.engine.config import EngineConfig
from python_backend.engine.cuda import build
from python_backend.engine.request import GenerationRequest
from tests.engine.checkpoints import greedy_choices, random_model, random_variant, save
from tests.engine.cuda.cases import on_gpu
from tests.engine.cuda.engines import build_cuda_engine
from tests.engine.drained import drain
from tests.engine.quantized_checkpoints import SIDES, quantize

NEW_TOKENS = 2
VOCABULARY = 64
# Between them: fused single rows, grouped heads, softcaps, norms behind layers, windows, experts, norms over
# all heads, a shared expert, sinks.
FAMILIES = (
    "llama, grouped heads, tied",
    "gemma2, untied, low softcaps",
    "mixtral, windowed, tied",
    "olmo2",
    "qwen2 moe",
    "gpt-oss",
)
pytestmark = pytest.mark.usefixtures("few_programs")


@pytest.mark.parametrize("variant", FAMILIES)
def test_the_ids_are_those_of_transformers_alone_and_in_a_batch(
    variant: str, device: str, tmp_path: Path
) -> None:
    model = random_variant(variant, vocab_size=VOCABULARY, intermediate_size=16, num_hidden_layers=2)
    check(model, save(model, tmp_path), device)


@pytest.mark.parametrize("variant", ["gemma2, untied, low softcaps", "gpt-oss"])
def test_layers_with_windows_that_keep_those_alone_give_the_ids_of_transformers(
    variant: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cache without room for the whole context in all layers; the second prompt begins as the first.

    In fp32 no tile has more than 32 tokens.
    """
    monkeypatch.setattr(build, "_TILE_TOKENS", 32)
    model = random_variant(variant, vocab_size=VOCABULARY, intermediate_size=16, num_hidden_layers=2)
    config = config_of(save(model, tmp_path), device, max_tokens_in_kv_cache=88, max_step_tokens=16)
    engine = build_cuda_engine(config, device)
    prompt = [random.Random(variant).randrange(VOCABULARY) for _ in range(90)]
    for key, asked in enumerate((prompt, [*prompt, 5])):
        before = engine.pool.new_blocks
        engine.add(key, GenerationRequest(asked, NEW_TOKENS))
        answer, _ = drain(engine)[key]
        assert answer == greedy_choices(model, asked, answer)
        engine.pool.check()
    assert engine.pool.new_blocks - before < 8, "what the last windows need is found"


@pytest.mark.parametrize("name", ["awq", *on_gpu("fp8, a scale for each block", "gptq, scattered groups")])
def test_the_ids_of_a_quantised_checkpoint_are_those_of_the_values_that_it_stores(
    name: str, device: str, tmp_path: Path
) -> None:
    """Interpreted, the kernels read the levels; on a GPU fp32 has them written out."""
    model = random_model("Llama", vocab_size=VOCABULARY, **SIDES | {"num_hidden_layers": 1})
    check(model, quantize(model, tmp_path, name), device)


def config_of(
    checkpoint: Path, device: str, max_tokens_in_kv_cache: int = 64, max_step_tokens: int = 8
) -> EngineConfig:
    return EngineConfig(
        str(checkpoint),
        max_tokens_in_kv_cache=max_tokens_in_kv_cache,
        tokens_per_block=4,
        max_batch_size=4,
        max_step_tokens=max_step_tokens,
        precision="fp32",
        device=device,
    )


def check(model: PreTrainedModel, checkpoint: Path, device: str) -> None:
    engine = build_cuda_engine(config_of(checkpoint, device), device)
    dice = random.Random(str(model.config.model_type))
    prompts = [[dice.randrange(VOCABULARY) for _ in range(length)] for length in (1, 5, 9)]
    for batch in ({0: prompts[2]}, dict(enumerate(prompts))):
        for key, prompt in batch.items():
            engine.add(key, GenerationRequest(prompt, NEW_TOKENS))
        for key, (answer, _) in drain(engine).items():
            assert answer == greedy_choices(model, batch[key], answer)
        engine.pool.check()
