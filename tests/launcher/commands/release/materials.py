"""What releases are made from in these tests: small, and right in all that is looked at."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 48,
    "max_position_embeddings": 256,
}
BERT = {
    "model_type": "bert",
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "hidden_size": 8,
    "intermediate_size": 16,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "vocab_size": 30,
    "layer_norm_eps": 1e-12,
}
TENSORS_CONFIG = """
# Doubles a number.
name: "doubling"
backend: "python"
max_batch_size: 8
version_policy { all {} }
input [ { name: "x", data_type: TYPE_FP32, dims: [ 1 ] } ]
output [ { name: "y", data_type: TYPE_FP32, dims: [ 1 ], label_filename: "labels.txt" } ]
parameters { key: "factor" value: { string_value: "2" } }
"""


def write_safetensors(path: Path, shapes: dict[str, tuple[int, ...]], fill: int = 0) -> Path:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes([fill]) * end)
    return path


def write_checkpoint(directory: Path, config: dict[str, Any] | None = None, fill: int = 0) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config or LLAMA))
    (directory / "tokenizer.json").write_text("{}")
    (directory / "generation_config.json").write_text('{"eos_token_id": 0}')
    (directory / "README.md").write_text("not part of it")
    write_safetensors(directory / "model.safetensors", {"a": (10, 10), "b": (7,)}, fill)
    return directory


def write_sharded(directory: Path) -> Path:
    write_checkpoint(directory)
    (directory / "model.safetensors").unlink()
    for shard in ("one.safetensors", "two.safetensors"):
        write_safetensors(directory / shard, {shard: (5,)})
    index = {"weight_map": {"one.safetensors": "one.safetensors", "two.safetensors": "two.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def write_triton_model(directory: Path, config: str = TENSORS_CONFIG) -> Path:
    """Two versions, the newer of which is 10."""
    for version in (2, 10):
        (directory / str(version) / "deeper").mkdir(parents=True)
        (directory / str(version) / "model.py").write_text(f"VERSION = {version}\n")
        (directory / str(version) / "deeper" / "table.bin").write_bytes(b"\0\1\2")
        (directory / str(version) / "__pycache__").mkdir()
        (directory / str(version) / "__pycache__" / "model.pyc").write_text("")
    (directory / "labels.txt").write_text("a label\n")
    (directory / "config.pbtxt").write_text(config)
    return directory
