"""Quantised checkpoints of every format against transformers on the values that they stand for."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from python_backend.engine.checkpoint import Checkpoint
from python_backend.engine.checkpoint.grouped import Grouped, Numbers, concatenated, dense
from python_backend.engine.models import load_weights
from python_backend.wire.errors import ErrorKind, InflightError
from tests.engine.checkpoints import VOCABULARY, all_logits, random_model
from tests.engine.models.dense import dense_logits
from tests.engine.quantized_checkpoints import FORMATS, SIDES, mxfp4, quantize, write

TOKENS = [random.Random(3).randrange(VOCABULARY) for _ in range(20)]


@pytest.mark.parametrize("name", FORMATS)
def test_logits_are_those_of_transformers_on_the_values_that_are_stored(name: str, tmp_path: Path) -> None:
    model = random_model("Llama", **SIDES)
    weights = load_weights(Checkpoint(quantize(model, tmp_path, name)))
    expected = all_logits(model, TOKENS)
    found = dense_logits(weights, TOKENS)
    assert float((found - expected).abs().max()) < 1e-4 * float(expected.abs().max())
    assert torch.equal(found.argmax(-1), expected.argmax(-1))
    is_written_out = name == "gptq, scattered groups"
    assert isinstance(weights.layer(0).qkv, Grouped) is not is_written_out
    assert weights.quantized_bytes is not None


def test_the_experts_of_gpt_oss_are_read_in_mxfp4(tmp_path: Path) -> None:
    model = random_model("GptOss", hidden_size=64, intermediate_size=32)
    model.save_pretrained(tmp_path)
    tensors: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for key, parameter in model.state_dict().items():
            if key.endswith(("gate_up_proj", "down_proj")):
                pairs, exponents, values = mxfp4(parameter.transpose(1, 2).contiguous())
                tensors |= {f"{key}_blocks": pairs, f"{key}_scales": exponents}
                parameter.copy_(values.transpose(1, 2))
            else:
                tensors[key] = parameter.clone()
    write(tmp_path, tensors, {"quant_method": "mxfp4"})
    weights = load_weights(Checkpoint(tmp_path))
    experts = weights.layer(0).experts
    assert experts is not None
    assert isinstance(experts.gate_up, Grouped)
    assert experts.gate_up.numbers is Numbers.E2M1
    found, expected = dense_logits(weights, TOKENS), all_logits(model, TOKENS)
    assert float((found - expected).abs().max()) < 1e-4 * float(expected.abs().max())


def test_blocks_may_end_within_the_matrix(tmp_path: Path) -> None:
    """DeepSeek's scales are for blocks of 128 by 128, and matrices need not be multiples of that."""
    model = random_model("Llama", num_hidden_layers=1, hidden_size=192, intermediate_size=160)
    model.save_pretrained(tmp_path)
    tensors = {key: value.clone() for key, value in model.state_dict().items()}
    stored = torch.randn(160, 192).to(torch.float8_e4m3fn)
    scales = torch.rand(2, 2) + 0.5
    name = "model.layers.0.mlp.gate_proj"
    tensors |= {f"{name}.weight": stored, f"{name}.weight_scale_inv": scales}
    write(tmp_path, tensors, {"quant_method": "fp8", "weight_block_size": [128, 128]})
    spread = scales.repeat_interleave(128, 0)[:160].repeat_interleave(128, 1)[:, :192]
    found = Checkpoint(tmp_path).tensor(f"{name}.weight", 160, 192)
    np.testing.assert_allclose(found, (stored.float() * spread).numpy(), rtol=1e-6)


@pytest.mark.parametrize(
    ("description", "sentence"),
    [
        (
            {"quant_method": "bitsandbytes"},
            "quant_method is 'bitsandbytes'; this engine reads fp8, fbgemm_fp8",
        ),
        ({}, None),
        ({"bits": 4}, "quant_method is 'unnamed'"),
        ({"quant_method": "awq", "version": "gemv"}, "version is 'gemv'; this engine reads gemm"),
        ({"quant_method": "awq", "bits": 8}, "bits is 8; this engine reads 4"),
        ({"quant_method": "gptq", "bits": 3}, "bits is 3; this engine reads 4 and 8"),
        ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt is 'e5m2'; this engine reads e4m3"),
        ({"quant_method": "compressed-tensors", "format": "marlin-24"}, "format is 'marlin-24'"),
        (
            {"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}},
            "sparsity_config is 'sparse-24-bitmask'; this engine reads dense",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 3}}},
            },
            "num_bits is 3; this engine reads 4 and 8",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_by_name_with_a_runtime_that_may(
    description: dict[str, Any], sentence: str | None, tmp_path: Path
) -> None:
    random_model("Llama").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": description}))
    if sentence is None:
        Checkpoint(tmp_path)
        return
    with pytest.raises(InflightError) as raised:
        Checkpoint(tmp_path)
    assert raised.value.kind is ErrorKind.UNSUPPORTED
    assert sentence in raised.value.message
    assert raised.value.message.endswith("inflight_runtime = vllm supports many that this engine does not")


def test_a_missing_part_of_a_quantised_matrix_is_named(tmp_path: Path) -> None:
    quantize(random_model("Llama", **SIDES), tmp_path, "gptq")
    checkpoint = Checkpoint(tmp_path)
    files = checkpoint._source
    files._raw -= {"model.layers.0.self_attn.q_proj.qzeros"}  # type: ignore[attr-defined]
    with pytest.raises(InflightError, match=r"lacks tensor .*q_proj\.qzeros"):
        checkpoint.tensor("model.layers.0.self_attn.q_proj.weight", 64, 64)


def test_matrices_quantised_alike_stay_so_together_and_others_are_written_out() -> None:
    def matrix(numbers: Numbers, group: int) -> Grouped:
        dice = np.random.default_rng(group)
        levels = dice.integers(-8, 8, (4, 64)).astype(np.int8)
        return Grouped(numbers, levels, dice.random((4, 64 // group)).astype(np.float32))

    alike = [matrix(Numbers.INT4, 32), matrix(Numbers.INT4, 64)]
    together = concatenated(alike)
    assert isinstance(together, Grouped)
    assert together.group == 32
    np.testing.assert_array_equal(dense(together), np.concatenate([dense(each) for each in alike]))
    mixed = concatenated([matrix(Numbers.INT4, 32), matrix(Numbers.INT8, 32)])
    assert not isinstance(mixed, Grouped)
