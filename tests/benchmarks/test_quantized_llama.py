"""The quantised checkpoints that benchmarks write are ones that the engine reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu.llama_8b import CONFIG
from benchmarks.gpu.quantized_llama_8b import FORMATS, write_quantized
from python_backend.engine.checkpoint import Checkpoint
from python_backend.engine.checkpoint.grouped import Grouped
from python_backend.engine.models import load_weights

SMALL = {
    **CONFIG,
    "num_hidden_layers": 1,
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 300,
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_random_quantised_checkpoint_is_read(name: str, tmp_path: Path) -> None:
    weights = load_weights(Checkpoint(write_quantized(tmp_path, name, SMALL)))
    layer = weights.layer(0)
    assert isinstance(layer.qkv, Grouped)
    assert isinstance(layer.down, Grouped)
    size = float(np.abs(layer.qkv.dequantized()).mean())
    assert 0.002 < size < 0.2, "weights of a usual size"
    assert weights.embeddings().shape == (300, 256)
