"""What a release takes to be loaded, as far as can be told beforehand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher.packaging.releases.checks import read_json
from launcher.placement import gpus_of_one
from python_backend.gguf.header import read_header
from router.core.manifest import Needs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.packaging.releases.sources import CheckpointSource

_BYTES_PER_WEIGHT = {"fp32": 4.0, "int8": 1.0, "int4": 0.5, "bf16": 2.0, "fp8": 1.0}
_BYTES_PER_CACHED = {"cpu": 4, "cuda": 2}
# What the engine takes on a CPU unless it is told how many tokens to keep; on a GPU a share of what is free.
_DEFAULT_CACHE_BYTES = {"cpu": 1 << 30}


def needs_of(source: CheckpointSource, parameters: Mapping[str, str]) -> Needs:
    """`parameters` name device and precision, where it is known what computes."""
    precision = parameters.get("inflight_precision", "fp32")
    weights_bytes = round(source.weights_count * _BYTES_PER_WEIGHT.get(precision, 4.0))
    device = parameters.get("inflight_device", "")
    cache_bytes = _DEFAULT_CACHE_BYTES.get(device, 0)
    tokens = parameters.get("max_tokens_in_paged_kv_cache")
    if tokens and device in _BYTES_PER_CACHED:
        is_fp8 = parameters.get("inflight_kv_precision") == "fp8"
        number_bytes = 1 if is_fp8 else _BYTES_PER_CACHED[device]
        cache_bytes = int(tokens) * _numbers_per_token(source) * number_bytes
    if device != "cuda":
        return Needs(weights_bytes, cache_bytes)
    # No more than the files: GPUs keep quantised weights as they are. Each copy has weights and a cache.
    files_bytes = sum(path.stat().st_size for path in source.weights.values())
    copies = int(parameters.get("data_parallel_size", 1))
    return Needs(copies * min(weights_bytes, files_bytes), copies * cache_bytes, gpus_of_one(parameters))


def _numbers_per_token(source: CheckpointSource) -> int:
    """Keys and values of one token in all layers."""
    layers, heads, kv_heads, hidden, head_size = _shape(source)
    if not (layers and heads):
        return 0
    return 2 * layers * (kv_heads or heads) * (head_size or hidden // heads)


def _shape(source: CheckpointSource) -> tuple[int, ...]:
    if source.checkpoint.model_path.suffix == ".gguf":
        fields = read_header(source.checkpoint.model_path).fields
        family = fields.get("general.architecture")
        names = (
            "block_count",
            "attention.head_count",
            "attention.head_count_kv",
            "embedding_length",
            "attention.key_length",
        )
        return tuple(_number(fields.get(f"{family}.{name}")) for name in names)
    config = read_json(source.checkpoint.directory / "config.json")
    names = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size", "head_dim")
    return tuple(_number(config.get(name)) for name in names)


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0
