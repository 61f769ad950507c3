"""What a checkpoint directory holds comes out in fp32, and what is wrong with it is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.torch import save_file

from python_backend.engine.checkpoint import Checkpoint
from python_backend.wire.errors import ErrorKind, InflightError
from tests.engine.checkpoints import random_llama, save
from tests.pace import patience
from tests.tiers import examples


def write(directory: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> str:
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors")
    return str(directory)


def refusal(directory: Path) -> InflightError:
    with pytest.raises(InflightError) as raised:
        Checkpoint(directory)
    return raised.value


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_tensor_is_read_as_fp32_whatever_its_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    stored = torch.randn(3, 5).to(dtype)
    tensor = Checkpoint(write(tmp_path, {}, {"odd": torch.ones(1).half(), "w": stored})).tensor("w", 3, 5)
    assert tensor.dtype == np.float32
    assert tensor.flags.aligned
    np.testing.assert_array_equal(tensor, stored.float().numpy())


@settings(deadline=None, max_examples=examples(30))
@given(arrays(np.uint16, 40))
def test_every_bfloat16_is_read_as_torch_reads_it(
    tmp_path_factory: pytest.TempPathFactory, bits: np.ndarray[Any, np.dtype[np.uint16]]
) -> None:
    stored = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
    tensor = Checkpoint(write(tmp_path_factory.mktemp("bf16"), {}, {"w": stored})).tensor("w", 40)
    np.testing.assert_array_equal(tensor, stored.float().numpy())


def test_an_unsupported_dtype_is_refused_by_name(tmp_path: Path) -> None:
    directory = write(tmp_path, {}, {"w": torch.ones(2, dtype=torch.int8)})
    with pytest.raises(InflightError) as raised:
        Checkpoint(directory).tensor("w", 2)
    assert raised.value.kind is ErrorKind.UNSUPPORTED
    assert (
        raised.value.message
        == f"tensor w of {tmp_path} is I8; this engine reads F32, F16, F64, BF16, F8_E4M3"
    )


def test_a_sharded_checkpoint_is_one_checkpoint(tmp_path: Path) -> None:
    model = random_llama()
    whole = Checkpoint(save(model, tmp_path / "whole"))
    shards = Checkpoint(save(model, tmp_path / "shards", max_shard_size="50KB"))
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    assert shards.weight_bytes == whole.weight_bytes == sum(4 * p.numel() for p in model.parameters())
    for name, parameter in model.named_parameters():
        np.testing.assert_array_equal(shards.tensor(name, *parameter.shape), parameter.detach().numpy())


def test_reading_a_model_does_not_import_torch(tmp_path: Path) -> None:
    save(random_llama(), tmp_path)
    program = (
        "import sys; from python_backend.engine.checkpoint import Checkpoint;"
        "from python_backend.engine.models import load_weights;"
        f"weights = load_weights(Checkpoint({str(tmp_path)!r})); weights.layer(0); weights.head();"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=patience(60)).returncode == 0


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    checkpoint = Checkpoint(write(tmp_path, {}, {"w": torch.ones(1)}))
    assert "v" not in checkpoint
    with pytest.raises(InflightError, match="lacks tensor v"):
        checkpoint.tensor("v", 1)


def test_a_tensor_of_another_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    checkpoint = Checkpoint(write(tmp_path, {}, {"w": torch.ones(2, 3)}))
    with pytest.raises(
        InflightError, match=r"tensor w of .* is \(2, 3\); its configuration implies \(3, 2\)"
    ):
        checkpoint.tensor("w", 3, 2)


def test_a_tensor_that_the_index_lists_and_the_shard_lacks_is_named(tmp_path: Path) -> None:
    write(tmp_path, {}, {"w": torch.ones(1)})
    index = {"weight_map": {"v": "model.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert refusal(tmp_path).message == f"model.safetensors of {tmp_path} lacks tensor v"


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write(tmp_path, {}, {"w": torch.ones(1)})
    index = {"weight_map": {"w": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-2.safetensors cannot be read" in refusal(tmp_path).message


def test_an_index_without_a_map_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {}, {"w": torch.ones(1)})
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    assert "has no weight_map" in refusal(tmp_path).message


def test_a_directory_that_is_not_a_checkpoint_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path).message == f"{tmp_path} is not a checkpoint: it has no config.json"
    (tmp_path / "config.json").write_text("{}")
    assert "neither model.safetensors nor" in refusal(tmp_path).message


def test_a_path_that_is_neither_directory_nor_gguf_is_refused(tmp_path: Path) -> None:
    message = f"{tmp_path / 'x'} is neither a checkpoint directory nor a .gguf file"
    assert refusal(tmp_path / "x").message == message


@pytest.mark.parametrize("text", ["{", "[1, 2]"])
def test_a_config_that_is_not_a_json_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    assert "config.json" in refusal(tmp_path).message


@pytest.mark.parametrize("kept_bytes", [0, 5, 100, -10])
def test_a_truncated_weights_file_is_refused(kept_bytes: int, tmp_path: Path) -> None:
    write(tmp_path, {}, {"w": torch.ones(100)})
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept_bytes])
    assert "model.safetensors cannot be read" in refusal(tmp_path).message


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=examples(60))
def test_no_content_of_a_weights_file_breaks_reading(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    directory = tmp_path_factory.mktemp("any")
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(len(content).to_bytes(8, "little") + content)
    assert "cannot be read" in refusal(directory).message
