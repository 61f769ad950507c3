"""A model's weights, packed: made from a checkpoint once, kept on disk, mapped from there afterwards."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from python_backend.engine.models.decoder import DecoderShape, DecoderWeights, LayerWeights, Weights
from python_backend.engine.native.microkernel import CHANNELS, GROUP, Format
from python_backend.engine.native.packing import pack, whole
from python_backend.engine.native.step import Arrays

_log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
_NOTHING = np.zeros(0, np.float32)


def head_format(kind: Format) -> Format:
    """The vocabulary's matrix keeps 8 bits: it is where 4 would cost the most."""
    return Format.INT8 if kind is Format.INT4 else kind


def _interleaved(gate_up: Weights, intermediate: int) -> Weights:
    """Eight gates, then the eight ups that belong to them, and so on; padded to whole groups."""
    padded = np.zeros((2, whole(intermediate, GROUP), *gate_up.shape[1:]), np.float32)
    padded[:, :intermediate] = gate_up.reshape(2, intermediate, *gate_up.shape[1:])
    tiles = padded.reshape(2, -1, CHANNELS, *gate_up.shape[1:]).swapaxes(0, 1)
    return np.ascontiguousarray(tiles).reshape(-1, *gate_up.shape[1:])


def _layer_arrays(layer: LayerWeights, shape: DecoderShape, kind: Format) -> dict[str, NDArray[np.generic]]:
    if layer.gate_up is None or layer.down is None:
        raise ValueError("a mixture of experts has no packed form")
    arrays: dict[str, NDArray[np.generic]] = {
        name: _NOTHING if value is None else np.ascontiguousarray(value, np.float32)
        for name, value in (
            ("attention_norm", layer.attention_norm),
            ("qkv_bias", layer.qkv_bias),
            ("query_norm", layer.query_norm),
            ("key_norm", layer.key_norm),
            ("attention_out_bias", layer.attention_out_bias),
            ("attention_out_norm", layer.attention_out_norm),
            ("mlp_norm", layer.mlp_norm),
            ("down_bias", layer.down_bias),
            ("mlp_out_norm", layer.mlp_out_norm),
        )
    }
    bias = layer.gate_up_bias
    arrays["gate_up_bias"] = _NOTHING if bias is None else _interleaved(bias, shape.intermediate)
    matrices = {
        "qkv": layer.qkv,
        "attention_out": layer.attention_out,
        "gate_up": _interleaved(layer.gate_up, shape.intermediate),
        "down": layer.down,
    }
    for name, matrix in matrices.items():
        packed = pack(matrix, kind)
        arrays[name], arrays[f"{name}_scales"] = packed.weights, packed.scales
    return arrays


def write_packed(
    weights: DecoderWeights, kind: Format, directory: Path, progress: Progress | None = None
) -> None:
    """Packs one layer after the other into files of `directory`, whole or not at all."""
    shape = weights.shape
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        for index in range(shape.layers):
            for name, array in _layer_arrays(weights.layer(index), shape, kind).items():
                _file(partial / f"{name}.npy", (shape.layers, *array.shape), array.dtype)[index] = array
            if progress:
                progress(index + 1, shape.layers + 1)
        embeddings, head = weights.embeddings(), weights.head()
        for name, matrix in (("head", embeddings if head is None else head), ("embeddings", embeddings)):
            if name == "embeddings" and head is None:
                continue
            packed = pack(matrix, head_format(kind))
            np.save(partial / f"{name}.npy", packed.weights)
            np.save(partial / f"{name}_scales.npy", packed.scales)
        np.save(partial / "final_norm.npy", weights.final_norm())
        if progress:
            progress(shape.layers + 1, shape.layers + 1)
        _put_in_place(partial, directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _file(path: Path, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
    if path.exists():
        return np.lib.format.open_memmap(path, mode="r+")
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)


def _put_in_place(partial: Path, directory: Path) -> None:
    try:
        partial.rename(directory)
    except OSError:
        # Another engine was quicker, with the same content.
        if not directory.is_dir():
            raise


def map_packed(directory: Path, shape: DecoderShape, kind: Format) -> Arrays:
    def array(name: str) -> NDArray[np.generic]:
        # Mapped copy-on-write, so that numba sees the same type as for arrays in memory.
        return np.asarray(np.load(directory / f"{name}.npy", mmap_mode="c"))

    names = set(Arrays._fields) - {"windows", "rope_of_layer", "embeddings", "embeddings_scales"}
    arrays = {name: array(name) for name in sorted(names)}
    is_tied = not (directory / "embeddings.npy").exists()
    arrays["embeddings"] = arrays["head"] if is_tied else array("embeddings")
    scales = arrays["head_scales"] if is_tied else array("embeddings_scales")
    arrays["embeddings_scales"] = scales.view(np.float16).astype(np.float32)
    arrays["windows"] = np.array([window or 0 for window in shape.windows], np.int64)
    arrays["rope_of_layer"] = np.array(shape.rope_of_layer, np.int64)
    return Arrays(**arrays)


def packed_bytes(directory: Path) -> int:
    return sum(os.path.getsize(path) for path in directory.iterdir())
