"""A decoder's weights on the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from python_backend.engine.cuda.grouped import keep_grouped, make_grouped
from python_backend.engine.cuda.head import Head
from python_backend.engine.cuda.kernels.attention_tiles import LOG2_E
from python_backend.engine.cuda.kernels.grouped import GroupedArrays
from python_backend.engine.cuda.linear import Linear
from python_backend.engine.cuda.memory import weight_bytes
from python_backend.engine.models.decoder import Grouped, dense

if TYPE_CHECKING:
    from python_backend.engine.models.decoder import (
        DecoderShape,
        DecoderWeights,
        LayerWeights,
        Matrix,
        Weights,
    )

_READERS = 4
# Of layers that are read ahead, in fp32: an expert model's have gigabytes each.
_MOST_AHEAD_BYTES = 8 << 30
# How an array of the checkpoint becomes a tensor on the device.
Place = Callable[["Weights"], torch.Tensor]
# How a matrix becomes a product: this is where precisions differ.
MakeLinear = Callable[[torch.Tensor, "torch.Tensor | None"], Linear]
MakeHead = Callable[[torch.Tensor], Head]


@dataclass(frozen=True, slots=True)
class Mlp:
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class ExpertTensors:
    """As `ExpertWeights`."""

    router: torch.Tensor
    gate_up: torch.Tensor | GroupedArrays
    down: torch.Tensor | GroupedArrays
    router_bias: torch.Tensor | None = None
    gate_up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer; `head_norms` is the norm of query and key heads, one head after the other.

    `wide_norms` are those of all query heads as one row, and of all key heads. `sinks` are to the base two.
    """

    attention_norm: torch.Tensor | None
    qkv: Linear
    head_norms: torch.Tensor | None
    attention_out: Linear
    attention_out_norm: torch.Tensor | None
    mlp_norm: torch.Tensor | None
    mlp: Mlp | ExpertTensors
    mlp_out_norm: torch.Tensor | None
    wide_norms: tuple[torch.Tensor, torch.Tensor] | None = None
    sinks: torch.Tensor | None = None


def place_layer(
    weights: LayerWeights,
    shape: DecoderShape,
    place: Place,
    place_norm: Place,
    make: MakeLinear,
    keep: torch.device | None = None,
) -> Layer:
    def optional_norm(array: Weights | None) -> torch.Tensor | None:
        return None if array is None else place_norm(array)

    def linear(matrix: Matrix, bias: Weights | None) -> Linear:
        placed = None if bias is None else place(bias)
        kept = None
        if isinstance(matrix, Grouped) and keep is not None:
            kept = make_grouped(matrix, placed, keep)
        return make(place(dense(matrix)), placed) if kept is None else kept

    head_norms, wide_norms = None, None
    if weights.query_norm is not None and weights.key_norm is not None:
        query, key = place_norm(weights.query_norm), place_norm(weights.key_norm)
        if len(query) == shape.head_dim:
            head_norms = torch.cat([query.repeat(shape.heads), key.repeat(shape.kv_heads)])
        else:
            wide_norms = query, key
    return Layer(
        attention_norm=optional_norm(weights.attention_norm),
        qkv=linear(weights.qkv, weights.qkv_bias),
        head_norms=head_norms,
        attention_out=linear(weights.attention_out, weights.attention_out_bias),
        attention_out_norm=optional_norm(weights.attention_out_norm),
        mlp_norm=optional_norm(weights.mlp_norm),
        mlp=_place_mlp(weights, place, linear, keep),
        mlp_out_norm=optional_norm(weights.mlp_out_norm),
        wide_norms=wide_norms,
        sinks=None if weights.sinks is None else _to_base_two(weights.sinks, place),
    )


def _place_mlp(
    weights: LayerWeights,
    place: Place,
    linear: Callable[[Matrix, Weights | None], Linear],
    keep: torch.device | None,
) -> Mlp | ExpertTensors:
    def matrices(of_all: Matrix) -> torch.Tensor | GroupedArrays:
        kept = keep_grouped(of_all, keep) if isinstance(of_all, Grouped) and keep is not None else None
        return place(dense(of_all)) if kept is None else kept

    def optional(bias: Weights | None) -> torch.Tensor | None:
        return None if bias is None else place(bias)

    experts = weights.experts
    if experts is not None:
        return ExpertTensors(
            place(experts.router),
            matrices(experts.gate_up),
            matrices(experts.down),
            optional(experts.router_bias),
            optional(experts.gate_up_bias),
            optional(experts.down_bias),
        )
    assert weights.gate_up is not None
    assert weights.down is not None
    return Mlp(linear(weights.gate_up, weights.gate_up_bias), linear(weights.down, weights.down_bias))


def _to_base_two(sinks: Weights, place: Place) -> torch.Tensor:
    """Scores as attention has them; in fp32, whatever the model's precision."""
    return (torch.from_numpy(np.ascontiguousarray(sinks)) * LOG2_E).to(place(sinks).device)


def readers_for(layer_bytes: int) -> int:
    """How many layers are read at a time, so that the host has room for them."""
    return max(1, min(_READERS, _MOST_AHEAD_BYTES // max(1, layer_bytes)))


def _read_ahead(
    read: Callable[[int], LayerWeights], layers: int, readers: int = _READERS
) -> Iterator[LayerWeights]:
    """Reading a layer is mostly converting numbers, which numpy does beside other threads."""
    with ThreadPoolExecutor(readers) as pool:
        coming = deque(pool.submit(read, index) for index in range(min(readers, layers)))
        for index in range(layers):
            layer = coming.popleft().result()
            if index + readers < layers:
                coming.append(pool.submit(read, index + readers))
            yield layer


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    embeddings: torch.Tensor
    layers: list[Layer]
    final_norm: torch.Tensor
    head: Head

    @property
    def linears(self) -> Iterator[Linear]:
        """Those of all layers, without the experts'."""
        for layer in self.layers:
            yield from (layer.qkv, layer.attention_out)
            if isinstance(layer.mlp, Mlp):
                yield from (layer.mlp.gate_up, layer.mlp.down)


def place_weights(
    weights: DecoderWeights,
    place: Place,
    make: MakeLinear,
    progress: Callable[[int, int], None],
    keep: torch.device | None = None,
    make_head: MakeHead = Head,
) -> DeviceWeights:
    """Layer by layer; a few are read at a time, so that no more than those are in the host's memory.

    Quantised matrices stay as they are on the device `keep`; without one they are written out.
    """
    shape = weights.shape

    def place_norm(array: Weights) -> torch.Tensor:
        placed = place(array)
        # Random ones have no array that could be kept as it is.
        if not shape.weighs_in_fp32 or not isinstance(array, np.ndarray):
            return placed
        return torch.from_numpy(np.ascontiguousarray(array, np.float32)).to(placed.device)

    layers = []
    progress(0, shape.layers + 1)
    readers = readers_for(weight_bytes(shape, "fp32") // shape.layers)
    for layer in _read_ahead(weights.layer, shape.layers, readers):
        layers.append(place_layer(layer, shape, place, place_norm, make, keep))
        progress(len(layers), shape.layers + 1)
    embeddings, head = place(weights.embeddings()), weights.head()
    entries = embeddings if head is None else place(head)
    placed = DeviceWeights(embeddings, layers, place_norm(weights.final_norm()), make_head(entries))
    progress(shape.layers + 1, shape.layers + 1)
    return placed
