"""What is read of an adapter's files, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from python_backend.engine.adapters.adapter import Part
from python_backend.engine.adapters.peft import read_adapter
from python_backend.engine.checkpoint import Checkpoint
from python_backend.engine.models import load_weights
from python_backend.engine.models.decoder import DecoderShape
from python_backend.wire.errors import ErrorKind, InflightError
from tests.engine.adapters.random_adapters import write_adapter
from tests.engine.checkpoints import random_variant, save


@pytest.fixture(scope="module")
def model() -> Any:
    return random_variant("llama")


@pytest.fixture(scope="module")
def shape(model: Any, tmp_path_factory: pytest.TempPathFactory) -> DecoderShape:
    return load_weights(Checkpoint(str(save(model, tmp_path_factory.mktemp("model"))))).shape


def test_the_scale_is_in_the_second_matrix(model: Any, shape: DecoderShape, tmp_path: Path) -> None:
    write_adapter(model, tmp_path, rank=4, modules=("v_proj",), lora_alpha=6)
    found = read_adapter(tmp_path, "a", shape, 8)
    stored = load_file(tmp_path / "adapter_model.safetensors")
    place = "base_model.model.model.layers.1.self_attn.v_proj.lora"
    pair = found.layers[1][Part.VALUE]
    assert np.array_equal(pair.shrink, stored[f"{place}_A.weight"].numpy())
    assert np.allclose(pair.expand, 1.5 * stored[f"{place}_B.weight"].numpy())
    assert (found.rank, set(found.layers[0])) == (4, {Part.VALUE})


def test_half_precision_files_are_read(model: Any, shape: DecoderShape, tmp_path: Path) -> None:
    write_adapter(model, tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    save_file({name: tensor.to(torch.bfloat16) for name, tensor in load_file(path).items()}, path)
    assert read_adapter(tmp_path, "a", shape, 8).rank == 4


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "bias 'all'"),
        ({"lora_bias": True}, "lora_bias"),
        ({"peft_type": "LOHA"}, "'LOHA'"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"target_parameters": ["experts.down_proj"]}, "target_parameters"),
        ({"rank_pattern": {"q_proj": 20}}, "inflight_max_adapter_rank"),
    ],
)
def test_other_kinds_of_adapters_are_refused_by_name(
    model: Any, shape: DecoderShape, tmp_path: Path, config: dict[str, Any], named: str
) -> None:
    write_adapter(model, tmp_path, **config)
    with pytest.raises(InflightError, match=named) as refused:
        read_adapter(tmp_path, "a", shape, 16)
    assert refused.value.kind is ErrorKind.UNSUPPORTED


@pytest.mark.parametrize("pattern", ["(([a-z_.0-9])+)+X", "(a|b)*", ".*.*.*.*X", "q_proj" * 100, "(q_proj"])
def test_a_pattern_that_could_take_for_ever_is_refused_before_it_is_tried(
    model: Any, shape: DecoderShape, tmp_path: Path, pattern: str
) -> None:
    write_adapter(model, tmp_path)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "alpha_pattern": {pattern: 16}}))
    with pytest.raises(InflightError, match="alpha_pattern has"):
        read_adapter(tmp_path, "a", shape, 16)


def test_a_pattern_chooses_modules_by_their_names(model: Any, shape: DecoderShape, tmp_path: Path) -> None:
    write_adapter(model, tmp_path, modules=("q_proj", "v_proj"), lora_alpha=4)
    plain = read_adapter(tmp_path, "a", shape, 16).layers[1]
    path = tmp_path / "adapter_config.json"
    chosen = {r"layers\.\d+\.self_attn.(v_proj)": 8}
    path.write_text(json.dumps({**json.loads(path.read_text()), "alpha_pattern": chosen}))
    found = read_adapter(tmp_path, "a", shape, 16).layers[1]
    assert np.allclose(found[Part.VALUE].expand, 2 * plain[Part.VALUE].expand)
    assert np.array_equal(found[Part.QUERY].expand, plain[Part.QUERY].expand)


def test_an_adapter_that_is_too_large_is_refused_by_its_header(
    model: Any, shape: DecoderShape, tmp_path: Path
) -> None:
    """The numbers are not even there."""
    write_adapter(model, tmp_path, modules=("v_proj",))
    path = tmp_path / "adapter_model.safetensors"
    stored = path.read_bytes()
    length = int.from_bytes(stored[:8], "little")
    header = json.loads(stored[8 : 8 + length])
    for name, entry in header.items():
        if "lora" in name:
            entry["shape"] = [10**9 if size == 4 else size for size in entry["shape"]]
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + stored[8 + length :])
    with pytest.raises(InflightError, match="rank 1000000000"):
        read_adapter(tmp_path, "a", shape, 16)


@pytest.mark.parametrize("tensor", ["lm_head.lora_A.weight", "model.embed_tokens.lora_embedding_A"])
def test_adapters_of_embeddings_and_heads_are_refused_by_name(
    model: Any, shape: DecoderShape, tmp_path: Path, tensor: str
) -> None:
    write_adapter(model, tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    save_file({**load_file(path), f"base_model.model.{tensor}": torch.zeros(4, 48)}, path)
    with pytest.raises(InflightError, match="q_proj") as refused:
        read_adapter(tmp_path, "a", shape, 16)
    assert tensor.split(".lora")[0] in refused.value.message


def test_an_adapter_of_another_model_is_refused_with_both_shapes(shape: DecoderShape, tmp_path: Path) -> None:
    write_adapter(random_variant("llama", hidden_size=32), tmp_path)
    with pytest.raises(InflightError, match=r"another model.*\(48, 4\)"):
        read_adapter(tmp_path, "a", shape, 16)
    deeper = random_variant("llama", num_hidden_layers=3)
    write_adapter(deeper, tmp_path / "deeper")
    with pytest.raises(InflightError, match="layer 2; the model has 2 layers"):
        read_adapter(tmp_path / "deeper", "a", shape, 16)


def test_files_that_are_not_whole_are_refused(model: Any, shape: DecoderShape, tmp_path: Path) -> None:
    write_adapter(model, tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    whole = load_file(path)
    save_file({name: tensor for name, tensor in whole.items() if "lora_B" not in name}, path)
    with pytest.raises(InflightError, match="only one of lora_A and lora_B"):
        read_adapter(tmp_path, "a", shape, 16)
    save_file({}, path)
    with pytest.raises(InflightError, match="changes nothing"):
        read_adapter(tmp_path, "a", shape, 16)
    (tmp_path / "adapter_config.json").write_text(json.dumps([]))
    with pytest.raises(InflightError, match="does not hold a JSON object"):
        read_adapter(tmp_path, "a", shape, 16)


def test_an_adapter_of_experts_is_refused_and_of_their_attention_is_not(tmp_path: Path) -> None:
    mixture = random_variant("mixtral")
    shape = load_weights(Checkpoint(str(save(mixture, tmp_path / "model")))).shape
    write_adapter(mixture, tmp_path / "attention", modules=("q_proj",))
    assert read_adapter(tmp_path / "attention", "a", shape, 16).rank == 4
    place = tmp_path / "attention" / "adapter_model.safetensors"
    experts = "base_model.model.model.layers.0.block_sparse_moe.experts.0.w1.lora_A.weight"
    save_file({**load_file(place), experts: torch.zeros(4, 48)}, place)
    with pytest.raises(InflightError, match="experts"):
        read_adapter(tmp_path / "attention", "a", shape, 16)
