"""A model's weights, packed: made from a checkpoint once, kept on disk, mapped from there afterwards."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backend.engine.models.decoder import (
    DecoderShape,
    DecoderWeights,
    ExpertWeights,
    LayerWeights,
    Matrix,
    of_rows,
)
from python_backend.engine.native.microkernel import CHANNELS, GROUP, Format
from python_backend.engine.native.tables import ARRAY_NAMES, Arrays, arrays_of
from python_backend.engine.native.weight_layouts import pack, whole

Progress = Callable[[int, int], None]
_NOTHING = np.zeros(0, np.float32)
AnyArray = NDArray[Any]
# What a model without experts, or without any dense layer, does not have.
_MAY_BE_ABSENT = ("gate_up", "down", "router", "expert_")
_OF_EXPERTS = ("router", "expert_gate_up", "expert_down")
_MATRICES = ("qkv", "attention_out", "gate_up", "down", "head", "embeddings", *_OF_EXPERTS)
_OF_THE_MODEL = ("final_norm", "head", "head_scales", "embeddings", "embeddings_scales")
_OF_LAYERS = ("windows", "rope_of_layer", "mlp_of_layer")


def _blank(name: str) -> AnyArray:
    """An array of the right kind that holds nothing."""
    if name in _OF_LAYERS:
        return np.zeros(0, np.int64)
    dimensions = 3 if name.startswith("expert_") else 1 if name in _OF_THE_MODEL else 2
    if name in _MATRICES:
        return np.zeros((0,) * dimensions, np.uint8)
    has_halves = name.endswith("_scales") and name != "embeddings_scales"
    return np.zeros((0,) * dimensions, np.uint16 if has_halves else np.float32)


def blank_arrays() -> Arrays:
    """No weights at all, by their types: all that a step is compiled for."""
    return arrays_of({name: _blank(name) for name in ARRAY_NAMES})


def head_format(kind: Format) -> Format:
    """The vocabulary's matrix keeps 8 bits: it is where 4 would cost the most."""
    return Format.INT8 if kind is Format.INT4 else kind


def _interleaved(gate_up: AnyArray, intermediate: int) -> AnyArray:
    """Eight gates, then the eight ups that belong to them, and so on; padded to whole groups."""
    padded = np.zeros((2, whole(intermediate, GROUP), *gate_up.shape[1:]), gate_up.dtype)
    padded[:, :intermediate] = gate_up.reshape(2, intermediate, *gate_up.shape[1:])
    tiles = padded.reshape(2, -1, CHANNELS, *gate_up.shape[1:]).swapaxes(0, 1)
    return np.ascontiguousarray(tiles).reshape(-1, *gate_up.shape[1:])


def _layer_arrays(layer: LayerWeights, kind: Format) -> dict[str, AnyArray]:
    """What every layer has."""
    arrays: dict[str, AnyArray] = {
        name: _NOTHING if value is None else np.ascontiguousarray(value, np.float32)
        for name, value in (
            ("attention_norm", layer.attention_norm),
            ("qkv_bias", layer.qkv_bias),
            ("query_norm", layer.query_norm),
            ("key_norm", layer.key_norm),
            ("attention_out_bias", layer.attention_out_bias),
            ("attention_out_norm", layer.attention_out_norm),
            ("mlp_norm", layer.mlp_norm),
            ("mlp_out_norm", layer.mlp_out_norm),
            ("sinks", layer.sinks),
        )
    }
    return arrays | _packed("qkv", layer.qkv, kind) | _packed("attention_out", layer.attention_out, kind)


def _mlp_arrays(layer: LayerWeights, shape: DecoderShape, kind: Format) -> dict[str, AnyArray]:
    """What a dense layer has."""
    assert layer.gate_up is not None
    assert layer.down is not None
    size, bias = shape.intermediate, layer.gate_up_bias
    return {
        "gate_up_bias": _NOTHING if bias is None else _interleaved(bias, size),
        "down_bias": _NOTHING if layer.down_bias is None else layer.down_bias,
        **_packed("gate_up", _taking_turns(layer.gate_up, size), kind),
        **_packed("down", layer.down, kind),
    }


def _expert_arrays(experts: ExpertWeights, intermediate: int, kind: Format) -> dict[str, AnyArray]:
    """What a layer of experts has; its router stays in fp32, where a rounded score could choose another."""
    count = experts.gate_up.shape[0]
    parts = [
        _packed("expert_gate_up", _taking_turns(_one(experts.gate_up, index), intermediate), kind)
        | _packed("expert_down", _one(experts.down, index), kind)
        for index in range(count)
    ]
    stacked = {name: np.stack([part[name] for part in parts]) for name in parts[0]}
    bias, nothing = experts.gate_up_bias, np.zeros((count, 0), np.float32)
    return {
        "router": pack(experts.router, Format.FP32).weights,
        "router_bias": _NOTHING if experts.router_bias is None else experts.router_bias,
        "expert_gate_up_bias": nothing
        if bias is None
        else np.stack([_interleaved(each, intermediate) for each in bias]),
        "expert_down_bias": nothing if experts.down_bias is None else experts.down_bias,
        **stacked,
    }


def _taking_turns(gate_up: Matrix, intermediate: int) -> Matrix:
    return of_rows(gate_up, lambda rows: _interleaved(rows, intermediate))


def _one(matrices: Matrix, index: int) -> Matrix:
    return of_rows(matrices, lambda rows: rows[index])


def _packed(name: str, matrix: Matrix, kind: Format) -> dict[str, AnyArray]:
    packed = pack(matrix, kind)
    return {name: packed.weights, f"{name}_scales": packed.scales}


def expected_bytes(shape: DecoderShape, kind: Format) -> int:
    """Of the matrices, when packed; at the least, since only reading it shows that a head is not tied."""

    def matrix(outputs: int, inputs: int, kind: Format = kind) -> int:
        groups = whole(outputs, CHANNELS) // CHANNELS * (whole(inputs, GROUP) // GROUP)
        return groups * (kind.bytes_per_group + 2 * kind.scales_per_group)

    def mlp(intermediate: int) -> int:
        return matrix(2 * whole(intermediate, GROUP), shape.hidden) + matrix(shape.hidden, intermediate)

    queries, pairs = shape.heads * shape.head_dim, 2 * shape.kv_heads * shape.head_dim
    attention = matrix(queries + pairs, shape.hidden) + matrix(shape.hidden, queries)
    experts = shape.experts
    mlps = mlp(shape.intermediate) if experts is None else experts.total * mlp(experts.intermediate)
    return shape.layers * (attention + mlps) + matrix(shape.vocabulary, shape.hidden, head_format(kind))


def write_packed(
    weights: DecoderWeights, kind: Format, directory: Path, progress: Progress | None = None
) -> None:
    """Packs one layer after the other into files of `directory`, whole or not at all."""
    shape = weights.shape
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        _write_layers(weights, kind, partial, progress)
        embeddings, head = weights.embeddings(), weights.head()
        matrices = {"head": embeddings} if head is None else {"head": head, "embeddings": embeddings}
        for matrix_name, matrix in matrices.items():
            for name, array in _packed(matrix_name, matrix, head_format(kind)).items():
                _write(partial / f"{name}.npy", array.shape, 0, array)
        final_norm = weights.final_norm()
        _write(partial / "final_norm.npy", final_norm.shape, 0, final_norm)
        if progress:
            progress(shape.layers + 1, shape.layers + 1)
        _put_in_place(partial, directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_layers(weights: DecoderWeights, kind: Format, partial: Path, progress: Progress | None) -> None:
    shape = weights.shape
    dense, with_experts = itertools.count(), itertools.count()
    mlp_of_layer = []
    for index in range(shape.layers):
        layer = weights.layer(index)
        for name, array in _layer_arrays(layer, kind).items():
            _row(partial / f"{name}.npy", shape.layers, index, array)
        if layer.experts is None:
            number = next(dense)
            arrays = _mlp_arrays(layer, shape, kind)
            mlp_of_layer.append(number)
        else:
            assert shape.experts is not None
            number = next(with_experts)
            arrays = _expert_arrays(layer.experts, shape.experts.intermediate, kind)
            mlp_of_layer.append(-1 - number)
        for name, array in arrays.items():
            _row(partial / f"{name}.npy", shape.layers, number, array)
        if progress:
            progress(index + 1, shape.layers + 1)
    _write(partial / "mlp_of_layer.npy", (shape.layers,), 0, np.array(mlp_of_layer, np.int64))


def _row(path: Path, rows: int, row: int, array: AnyArray) -> None:
    """One layer's part of a file that has room for each; what is never written takes none on disk."""
    _write(path, (rows, *array.shape), row * array.nbytes, array)


def _write(path: Path, shape: tuple[int, ...], at_bytes: int, array: AnyArray) -> None:
    """Not through a mapping: where the disk is full, that ends the process, and this raises an OSError."""
    if not path.exists():
        np.lib.format.open_memmap(path, mode="w+", dtype=array.dtype, shape=shape)
    header_bytes = np.lib.format.open_memmap(path, mode="r").offset
    with path.open("r+b") as file:
        file.seek(header_bytes + at_bytes)
        file.write(np.ascontiguousarray(array).data)


def _put_in_place(partial: Path, directory: Path) -> None:
    try:
        partial.rename(directory)
    except OSError:
        # Another engine was quicker, with the same content.
        if not directory.is_dir():
            raise


def map_packed(directory: Path, shape: DecoderShape, kind: Format) -> Arrays:
    def array(name: str) -> AnyArray:
        path = directory / f"{name}.npy"
        if name.startswith(_MAY_BE_ABSENT) and not path.exists():
            return _blank(name)
        # Mapped copy-on-write, so that numba sees the same type as for arrays in memory.
        return np.asarray(np.load(path, mmap_mode="c"))

    names = set(ARRAY_NAMES) - {"windows", "rope_of_layer", "embeddings", "embeddings_scales"}
    arrays = {name: array(name) for name in sorted(names)}
    is_tied = not (directory / "embeddings.npy").exists()
    arrays["embeddings"] = arrays["head"] if is_tied else array("embeddings")
    scales = arrays["head_scales"] if is_tied else array("embeddings_scales")
    arrays["embeddings_scales"] = scales.view(np.float16).astype(np.float32)
    arrays["windows"] = np.array([window or 0 for window in shape.windows], np.int64)
    arrays["rope_of_layer"] = np.array(shape.rope_of_layer, np.int64)
    return arrays_of(arrays)


def packed_bytes(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in directory.iterdir())
