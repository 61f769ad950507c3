"""Keys and values in fp8: rounded once, when they are stored, and nothing else of an answer changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache, PreTrainedModel

from python_backend.engine.config import EngineConfig
from python_backend.engine.cuda.kernels.quantization import FP8_MAX
from python_backend.engine.cuda.kernels.rope import turn_and_store
from python_backend.engine.request import GenerationRequest
from tests.engine.checkpoints import all_logits, random_variant, save
from tests.engine.cuda.cases import on_gpu
from tests.engine.cuda.engines import build_cuda_engine
from tests.engine.drained import drain, events_of

VOCABULARY = 64
PROMPT = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 3, 23]
pytestmark = pytest.mark.usefixtures("few_programs")


def in_fp8(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)


class RoundedCache(DynamicCache):  # type: ignore[misc]  # transformers declares no types
    """That of transformers, with what fp8 makes of keys and values."""

    def update(self, key: torch.Tensor, value: torch.Tensor, *where: Any, **how: Any) -> Any:
        return super().update(in_fp8(key).float(), in_fp8(value).float(), *where, **how)


@torch.no_grad()
def rounded_log_probs(model: PreTrainedModel, prompt: list[int], answer: list[int]) -> torch.Tensor:
    """(tokens of the answer, vocabulary), of a model that sees keys and values as fp8 has them."""
    ids = torch.tensor([prompt + answer[:-1]])
    logits = model(ids, past_key_values=RoundedCache(config=model.config), use_cache=True).logits[0]
    found: torch.Tensor = logits[len(prompt) - 1 :].log_softmax(-1)
    return found


def store(kept_as: torch.dtype, magnitude: float, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The keys and values of three rows with one head each, at positions 2 to 4 of a sequence."""
    dice = torch.Generator().manual_seed(1)
    qkv = (torch.randn(3, 3 * 16, generator=dice) * magnitude).to(device)
    keys, values = (torch.zeros(2, 1, 4, 16, device=device).to(kept_as) for _ in range(2))
    angles = torch.rand(8, 8, generator=dice).to(device)
    positions, slots = (torch.tensor(each, dtype=torch.int32, device=device) for each in ([2, 3, 4], [0] * 3))
    table = torch.tensor([[1, 0]], dtype=torch.int32, device=device)
    turn_and_store(qkv, keys, values, angles.cos(), angles.sin(), None, 1e-5, slots, positions, table)
    return keys.cpu(), values.cpu()


@pytest.mark.parametrize("magnitude", [1.0, 1e3])
def test_keys_and_values_are_rounded_as_they_are_stored_and_never_beyond_the_largest_number(
    magnitude: float, device: str
) -> None:
    for rounded, exact in zip(
        store(torch.float8_e4m3fn, magnitude, device), store(torch.float32, magnitude, device), strict=True
    ):
        assert torch.equal(rounded.float(), in_fp8(exact).float())
        assert (rounded.float().abs().max() == FP8_MAX) == (magnitude > FP8_MAX)


@pytest.mark.parametrize(
    "variant", ["llama, grouped heads, tied", "gpt-oss", *on_gpu("gemma2, untied, low softcaps", "qwen3")]
)
def test_the_ids_are_those_of_a_model_whose_keys_and_values_are_rounded(
    variant: str, device: str, tmp_path: Path
) -> None:
    model = random_variant(variant, vocab_size=VOCABULARY, intermediate_size=16, num_hidden_layers=2)
    engine = build_cuda_engine(config_of(save(model, tmp_path), device), device)
    for batch in ({0: PROMPT}, {0: PROMPT, 1: PROMPT[:1], 2: [*PROMPT[:8], 60]}):
        for key, prompt in batch.items():
            engine.add(key, GenerationRequest(prompt, 3, returns_log_probs=True))
        events = events_of(engine)
        for key, prompt in batch.items():
            answer = [token for event in events if event.key == key for token in event.token_ids]
            told = [number for event in events if event.key == key for number in event.log_probs or []]
            expected = rounded_log_probs(model, prompt, answer)
            assert answer == expected.argmax(-1).tolist()
            # A number in the middle between two of fp8 may be rounded the other way by another device.
            np.testing.assert_allclose(told, expected.max(-1).values, atol=2e-2)
        engine.pool.check()
    exact = all_logits(model, [*prompt, *answer[:-1]])[len(prompt) - 1 :].log_softmax(-1)
    assert (exact - expected).abs().max() > 0.1, "without rounding they are others"


def test_what_left_for_the_host_in_fp8_comes_back_and_is_what_it_was(device: str, tmp_path: Path) -> None:
    model = random_variant("llama", vocab_size=VOCABULARY, intermediate_size=16, num_hidden_layers=1)
    config = config_of(save(model, tmp_path), device)
    engine = build_cuda_engine(replace(config, max_tokens_in_kv_cache=32, host_cache_bytes=1 << 16), device)
    assert engine.pool.host is not None
    block_bytes = 2 * config.tokens_per_block * model.config.num_key_value_heads * model.config.head_dim
    assert engine.pool.host.total_blocks == (1 << 16) // block_bytes
    first = [*PROMPT, *PROMPT[:5]]
    for key, prompt in enumerate((first, [40] * 26, [41] * 26, [*first, 7])):
        engine.add(key, GenerationRequest(prompt, 2))
        answer, _ = drain(engine)[key]
        assert answer == rounded_log_probs(model, prompt, answer).argmax(-1).tolist()
    assert engine.gauges().recalled_blocks >= 4


def config_of(checkpoint: Path, device: str) -> EngineConfig:
    return EngineConfig(
        str(checkpoint),
        max_tokens_in_kv_cache=64,
        tokens_per_block=4,
        max_batch_size=4,
        max_step_tokens=8,
        precision="fp32",
        kv_precision="fp8",
        device=device,
    )
