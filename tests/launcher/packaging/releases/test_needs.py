"""What a release needs of memory: of the machine's, or of so many GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.packaging.models.checkpoint import Checkpoint
from launcher.packaging.releases.needs import needs_of
from launcher.packaging.releases.sources import CheckpointSource
from router.core.manifest import Kind, Needs

# Keys and values of one token: two layers of two heads of eight numbers.
PER_TOKEN = 2 * 2 * 2 * 8


@pytest.fixture
def source(tmp_path: Path) -> CheckpointSource:
    config = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32}
    (tmp_path / "config.json").write_text(json.dumps(config))
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(1500))
    checkpoint = Checkpoint("m", tmp_path, tmp_path)
    return CheckpointSource(Kind.TEXT, checkpoint, {weights.name: weights}, {}, weights_count=1000)


@pytest.mark.parametrize(
    ("parameters", "needs"),
    [
        ({"inflight_device": "cpu", "inflight_precision": "int8"}, Needs(1000, 1 << 30)),
        (
            {"inflight_device": "cpu", "max_tokens_in_paged_kv_cache": "10"},
            Needs(4000, 10 * PER_TOKEN * 4),
        ),
        ({"inflight_device": "cuda", "inflight_precision": "fp8"}, Needs(1000, 0, 1)),
        # Quantised files stay as they are.
        ({"inflight_device": "cuda", "inflight_precision": "bf16"}, Needs(1500, 0, 1)),
        (
            {
                "inflight_device": "cuda",
                "inflight_precision": "fp8",
                "max_tokens_in_paged_kv_cache": "10",
                "tensor_parallel_size": "2",
                "data_parallel_size": "3",
            },
            Needs(3 * 1000, 3 * 10 * PER_TOKEN * 2, 6),
        ),
        (
            {
                "inflight_device": "cuda",
                "inflight_kv_precision": "fp8",
                "max_tokens_in_paged_kv_cache": "10",
            },
            Needs(1500, 10 * PER_TOKEN, 1),
        ),
        ({}, Needs(4000, 0)),
    ],
)
def test_weights_and_cache_count_where_they_lie(
    source: CheckpointSource, parameters: dict[str, str], needs: Needs
) -> None:
    assert needs_of(source, parameters) == needs
