"""An encoder in torch, for GPUs: the same inputs as the ONNX graph has, and the same results in bf16."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from python_backend.embeddings.layers import Encoder, Floats, Head, Layer, Linear, Norm, Rope

_UNSEEN = -1e9
_Tables = tuple[torch.Tensor, torch.Tensor]  # cosines and sines
_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": functional.gelu,
    "silu": functional.silu,
}


@dataclass(frozen=True, slots=True)
class _Product:
    weight: torch.Tensor
    bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _Norm:
    weight: torch.Tensor
    bias: torch.Tensor | None
    epsilon: float
    is_rms: bool


@dataclass(frozen=True, slots=True)
class _Layer:
    """A `Layer` on the device."""

    query_key_value: _Product
    attention_output: _Product
    attention_norm: _Norm | None
    up: _Product
    down: _Product
    output_norm: _Norm
    is_gated: bool
    rope: Rope | None
    window: int | None
    query_norm: _Norm | None
    key_norm: _Norm | None


@dataclass(frozen=True, slots=True)
class _Head:
    output: _Product
    dense: _Product | None
    activation: str
    norm: _Norm | None


class TorchEncoder:
    def __init__(
        self, encoder: Encoder, head: Head | None, device: str = "cuda", dtype: torch.dtype = torch.bfloat16
    ) -> None:
        self._shape = encoder.shape
        self._is_pre_norm, self._is_causal = encoder.is_pre_norm, encoder.is_causal
        self._device = torch.device(device)
        self._dtype = dtype
        self._words, self._positions, self._types, self._relative, self._embedding_norm, self._final_norm = (
            self._moved(part, dtype)
            for part in (
                encoder.words,
                encoder.positions,
                encoder.types,
                encoder.relative,
                encoder.embedding_norm,
                encoder.final_norm,
            )
        )
        self._blocks = [_Layer(**self._parts(layer, dtype)) for layer in encoder.layers]
        # In fp32, which costs next to nothing for a row of each text.
        self._head = None if head is None else _Head(**self._parts(head, torch.float32))

    @torch.inference_mode()
    def run(self, inputs: Mapping[str, Any]) -> Floats:
        ids, positions, types, texts = (
            torch.from_numpy(inputs[name]).to(self._device, non_blocking=True)
            for name in ("ids", "positions", "types", "texts")
        )
        states = self._embedded(ids, positions, types)
        # Where each row is one text nothing has to be hidden, for which there are faster kernels. What stands
        # behind a text is seen by nobody if tokens see only those before them.
        is_plain = len(inputs["pooling"]) == len(ids)
        is_plain = is_plain and (self._is_causal or bool(inputs["texts"].min() >= 0))
        states = self._layers(states, positions, None if is_plain else texts)
        pooling = torch.from_numpy(inputs["pooling"]).to(self._device)
        pooled = pooling @ states.flatten(0, 1).float()
        result = pooled if self._head is None else self._scored(pooled, self._head)
        return np.asarray(result.float().cpu(), np.float32)

    def _embedded(self, ids: torch.Tensor, positions: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        states = functional.embedding(ids, self._words)
        if self._positions is not None:
            states = states + functional.embedding(positions, self._positions)
        if self._types is not None:
            states = states + functional.embedding(types, self._types)
        return self._normed(states, self._embedding_norm)

    def _layers(
        self, states: torch.Tensor, positions: torch.Tensor, texts: torch.Tensor | None
    ) -> torch.Tensor:
        hidden = {
            window: self._hidden(positions, texts, window)
            for window in {each.window for each in self._blocks}
        }
        turns = {
            rope: self._rotations(positions, rope) for rope in {each.rope for each in self._blocks} if rope
        }
        for layer in self._blocks:
            normed = self._normed(states, layer.attention_norm) if self._is_pre_norm else states
            tables = None if layer.rope is None else turns[layer.rope]
            mixed = self._attended(normed, layer, tables, hidden[layer.window])
            states = states + _times(mixed, layer.attention_output)
            if self._is_pre_norm:
                states = states + self._thought(self._normed(states, layer.output_norm), layer)
            else:
                states = self._normed(states, layer.attention_norm)
                states = self._normed(states + self._thought(states, layer), layer.output_norm)
        return self._normed(states, self._final_norm)

    def _attended(
        self, states: torch.Tensor, layer: _Layer, tables: _Tables | None, bias: torch.Tensor | None
    ) -> torch.Tensor:
        shape, (rows, width, _) = self._shape, states.shape
        joined = _times(states, layer.query_key_value).view(rows, width, -1, shape.head_size)
        queries, keys, values = torch.split(joined, [shape.heads, shape.kv_heads, shape.kv_heads], dim=2)
        queries, keys = self._normed(queries, layer.query_norm), self._normed(keys, layer.key_norm)
        queries, keys, values = (each.transpose(1, 2) for each in (queries, keys, values))
        if layer.rope is not None and tables is not None:
            turned = _pairs_turned if layer.rope.is_paired else _half_turned
            queries, keys = (each * tables[0] + turned(each) * tables[1] for each in (queries, keys))
        shares = shape.heads != shape.kv_heads
        if shares and bias is not None:  # the kernels that take what is hidden want as many of each
            times = shape.heads // shape.kv_heads
            keys, values = (each.repeat_interleave(times, dim=1) for each in (keys, values))
        mixed = functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=bias, is_causal=self._is_causal and bias is None,
            enable_gqa=shares and bias is None,
        )  # fmt: skip
        return mixed.transpose(1, 2).reshape(rows, width, -1)

    def _thought(self, states: torch.Tensor, layer: _Layer) -> torch.Tensor:
        return _times(self._activated(states, layer), layer.down)

    def _activated(self, states: torch.Tensor, layer: _Layer) -> torch.Tensor:
        up, activate = _times(states, layer.up), _ACTIVATIONS[self._shape.activation]
        if not layer.is_gated:
            return activate(up)
        active, factor = up.chunk(2, dim=-1)
        return activate(active) * factor

    def _hidden(
        self, positions: torch.Tensor, texts: torch.Tensor | None, window: int | None
    ) -> torch.Tensor | None:
        """What is added to the scores of attention; None: nothing."""
        if window is not None and window >= positions.shape[1] - 1:
            window = None
        if texts is None and window is None and self._relative is None:
            return None
        distance = positions[:, None, :] - positions[:, :, None]
        seen = torch.ones_like(distance, dtype=torch.bool)
        if texts is not None:
            seen = texts[:, None, :] == texts[:, :, None]
        if self._is_causal:
            seen = seen & (distance <= 0)
        if window is not None:
            seen = seen & (distance.abs() <= window)
        bias = torch.zeros(distance.shape, dtype=self._dtype, device=self._device)
        bias = bias.masked_fill(~seen, _UNSEEN)[:, None]
        if self._relative is not None:
            most = self._shape.positions - 1
            by_head = functional.embedding((distance + most).clamp(0, 2 * most), self._relative)
            bias = bias + by_head.permute(0, 3, 1, 2)
        return bias

    def _rotations(self, positions: torch.Tensor, rope: Rope) -> _Tables:
        turns = torch.tensor(rope.frequencies, dtype=torch.float32, device=self._device)
        angles = (positions[..., None].float() * turns)[:, None]
        both = angles.repeat_interleave(2, dim=-1) if rope.is_paired else torch.cat((angles, angles), dim=-1)
        return (both.cos() * rope.magnitude).to(self._dtype), (both.sin() * rope.magnitude).to(self._dtype)

    def _scored(self, pooled: torch.Tensor, head: _Head) -> torch.Tensor:
        if head.dense is not None:
            dense = _times(pooled, head.dense)
            active = dense.tanh() if head.activation == "tanh" else functional.gelu(dense)
            pooled = self._normed(active, head.norm)
        return _times(pooled, head.output)

    def _normed(self, states: torch.Tensor, norm: _Norm | None) -> torch.Tensor:
        if norm is None:
            return states
        if norm.is_rms:
            return functional.rms_norm(states, states.shape[-1:], norm.weight, norm.epsilon)
        return functional.layer_norm(states, states.shape[-1:], norm.weight, norm.bias, norm.epsilon)

    def _parts(self, of: Layer | Head, dtype: torch.dtype) -> dict[str, Any]:
        return {part.name: self._moved(getattr(of, part.name), dtype) for part in fields(of)}

    def _moved(self, part: Any, dtype: torch.dtype) -> Any:
        """What is a weight, on the device; all else as it is."""
        if isinstance(part, np.ndarray):
            return torch.from_numpy(np.ascontiguousarray(part)).to(self._device, dtype)
        if isinstance(part, Linear):
            return _Product(self._moved(part.weight.T, dtype), self._moved(part.bias, dtype))
        if isinstance(part, Norm):
            weight, bias = self._moved(part.weight, dtype), self._moved(part.bias, dtype)
            return _Norm(weight, bias, part.epsilon, part.is_rms)
        return part


def _times(states: torch.Tensor, product: _Product) -> torch.Tensor:
    return functional.linear(states, product.weight, product.bias)


def _pairs_turned(values: torch.Tensor) -> torch.Tensor:
    pairs = values.reshape(*values.shape[:-1], -1, 2)
    return torch.stack((-pairs[..., 1], pairs[..., 0]), dim=-1).flatten(-2)


def _half_turned(values: torch.Tensor) -> torch.Tensor:
    low, high = values.chunk(2, dim=-1)
    return torch.cat((-high, low), dim=-1)


def take_share(share: float) -> None:
    """Of the GPU's memory this process uses no more than that part."""
    torch.cuda.set_per_process_memory_fraction(share)
