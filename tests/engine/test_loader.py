from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from python_backend.engine.loader import Checkpoint
from python_backend.engine.models import load_model
from python_backend.wire.errors import ErrorKind, InflightError
from tests.engine.checkpoints import random_llama, save


def write(directory: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> str:
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors")
    return str(directory)


@pytest.fixture
def llama_dir(tmp_path: Path) -> Path:
    return save(random_llama(), tmp_path)


def edit_config(directory: Path, **changes: Any) -> str:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return str(directory)


def refusal(directory: str) -> InflightError:
    with pytest.raises(InflightError) as raised:
        load_model(Checkpoint(directory))
    return raised.value


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_tensor_comes_out_in_fp32_whatever_it_was(tmp_path: Path, dtype: torch.dtype) -> None:
    stored = torch.randn(3, 5).to(dtype)
    tensor = Checkpoint(write(tmp_path, {}, {"w": stored})).tensor("w", 3, 5)
    assert tensor.dtype is torch.float32
    assert torch.equal(tensor, stored.float())


def test_a_sharded_checkpoint_is_one_checkpoint(tmp_path: Path) -> None:
    model = random_llama()
    whole = Checkpoint(str(save(model, tmp_path / "whole")))
    shards = Checkpoint(str(save(model, tmp_path / "shards", max_shard_size="50KB")))
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    assert shards.weight_bytes == whole.weight_bytes == sum(4 * p.numel() for p in model.parameters())
    for name, parameter in model.named_parameters():
        assert torch.equal(shards.tensor(name, *parameter.shape), parameter.detach())


def test_an_unknown_architecture_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    error = refusal(write(tmp_path, {"architectures": ["MambaForCausalLM"]}, {"w": torch.ones(1)}))
    assert error.kind is ErrorKind.UNSUPPORTED
    assert error.message == (
        f"{tmp_path} is a MambaForCausalLM, which this engine does not know; it knows LlamaForCausalLM"
    )


def test_a_checkpoint_that_names_no_architecture_is_refused(tmp_path: Path) -> None:
    error = refusal(write(tmp_path, {}, {"w": torch.ones(1)}))
    assert "model of no named architecture" in error.message


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    model = random_llama()
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    del tensors["model.layers.1.mlp.up_proj.weight"]
    error = refusal(
        write(tmp_path, model.config.to_dict() | {"architectures": ["LlamaForCausalLM"]}, tensors)
    )
    assert error.message == f"{tmp_path} lacks tensor model.layers.1.mlp.up_proj.weight"


def test_a_tensor_of_another_shape_is_named_with_both_shapes(llama_dir: Path) -> None:
    error = refusal(edit_config(llama_dir, intermediate_size=96))
    assert "mlp.gate_proj.weight" in error.message
    assert "(80, 48)" in error.message
    assert "(96, 48)" in error.message


def test_a_tensor_that_the_index_promises_and_the_shard_lacks_is_named(tmp_path: Path) -> None:
    directory = write(tmp_path, {}, {"w": torch.ones(1)})
    index = {"weight_map": {"v": "model.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InflightError, match=r"model\.safetensors of .* lacks tensor v"):
        Checkpoint(directory).tensor("v", 1)


def test_an_index_without_a_map_is_refused(tmp_path: Path) -> None:
    directory = write(tmp_path, {}, {"w": torch.ones(1)})
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(InflightError, match="has no weight_map"):
        Checkpoint(directory)


def test_a_directory_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    assert refusal(str(tmp_path)).message == f"{tmp_path} is not a checkpoint: it has no config.json"
    (tmp_path / "config.json").write_text("{}")
    assert "neither model.safetensors nor" in refusal(str(tmp_path)).message


@pytest.mark.parametrize("text", ["{", "[1, 2]"])
def test_a_config_that_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    assert "config.json" in refusal(str(tmp_path)).message


def test_a_truncated_weights_file_is_refused(llama_dir: Path) -> None:
    weights = llama_dir / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert "model.safetensors cannot be read" in refusal(str(llama_dir)).message


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; this engine knows silu"),
        (
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}},
            "rope scaling is 'yarn'; this engine knows default, linear, llama3",
        ),
        (
            {"quantization_config": {"quant_method": "awq"}},
            "quantization_config is set; this engine loads unquantized weights",
        ),
    ],
)
def test_what_the_engine_cannot_do_is_refused_by_name(
    llama_dir: Path, changes: dict[str, Any], sentence: str
) -> None:
    error = refusal(edit_config(llama_dir, **changes))
    assert (error.kind, error.message) == (ErrorKind.UNSUPPORTED, sentence)


def test_a_missing_key_of_the_config_is_named(llama_dir: Path) -> None:
    path = llama_dir / "config.json"
    config = json.loads(path.read_text())
    del config["num_hidden_layers"]
    path.write_text(json.dumps(config))
    assert refusal(str(llama_dir)).message == "config.json lacks num_hidden_layers"


def test_a_missing_key_of_rope_scaling_is_named(llama_dir: Path) -> None:
    directory = edit_config(llama_dir, rope_parameters={"rope_type": "linear", "rope_theta": 1e4})
    assert refusal(directory).message == "rope scaling 'linear' of config.json lacks factor"


def test_the_older_spelling_of_rope_settings_is_read_alike(llama_dir: Path, tmp_path: Path) -> None:
    from python_backend.engine.models.rope import inverse_frequencies

    older = {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 4.0}}
    newer = {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}}
    assert torch.equal(inverse_frequencies(older, 16), inverse_frequencies(newer, 16))
