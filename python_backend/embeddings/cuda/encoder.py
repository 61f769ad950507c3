"""An encoder in torch, for GPUs: the same inputs as the ONNX graph has, and the same results in bf16."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from python_backend.embeddings.layers import Encoder, Floats, Head, Layer, Linear, Norm

_UNSEEN = -1e9
_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": functional.gelu,
    "silu": functional.silu,
}


@dataclass(frozen=True, slots=True)
class _Pair:
    """Weight and bias of a product or a norm."""

    weight: torch.Tensor
    bias: torch.Tensor | None


class TorchEncoder:
    def __init__(
        self, encoder: Encoder, head: Head | None, device: str = "cuda", dtype: torch.dtype = torch.bfloat16
    ) -> None:
        self._encoder = encoder
        self._shape = encoder.shape
        self._head = head
        self._device = torch.device(device)
        self._dtype = dtype
        self._kept: dict[int, _Pair] = {}
        self._words = self._tensor(encoder.words)
        self._positions = None if encoder.positions is None else self._tensor(encoder.positions)
        self._types = None if encoder.types is None else self._tensor(encoder.types)
        self._relative = None if encoder.relative is None else self._tensor(encoder.relative)

    @torch.inference_mode()
    def run(self, inputs: Mapping[str, Any]) -> Floats:
        ids, positions, types, texts = (
            torch.from_numpy(inputs[name]).to(self._device, non_blocking=True)
            for name in ("ids", "positions", "types", "texts")
        )
        states = self._embedded(ids, positions, types)
        # Where each row is one whole text nothing has to be hidden, for which there are faster kernels.
        is_plain = len(inputs["pooling"]) == len(ids) and bool(inputs["texts"].min() >= 0)
        states = self._layers(states, positions, None if is_plain else texts)
        pooling = torch.from_numpy(inputs["pooling"]).to(self._device)
        pooled = pooling @ states.flatten(0, 1).float()
        result = pooled if self._head is None else self._scored(pooled.to(self._dtype), self._head)
        return np.asarray(result.float().cpu(), np.float32)

    def _embedded(self, ids: torch.Tensor, positions: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        states = functional.embedding(ids, self._words)
        if self._positions is not None:
            states = states + functional.embedding(positions, self._positions)
        if self._types is not None:
            states = states + functional.embedding(types, self._types)
        return self._normed(states, self._encoder.embedding_norm)

    def _layers(
        self, states: torch.Tensor, positions: torch.Tensor, texts: torch.Tensor | None
    ) -> torch.Tensor:
        encoder = self._encoder
        biases: dict[int | None, torch.Tensor | None] = {}
        residual = states
        following = [*(layer.attention_norm for layer in encoder.layers[1:]), encoder.final_norm]
        for layer, next_norm in zip(encoder.layers, following, strict=True):
            if layer.window not in biases:
                biases[layer.window] = self._hidden(positions, texts, layer.window)
            norms: tuple[Norm | None, Norm | None] = (layer.attention_norm, layer.output_norm)
            if encoder.is_pre_norm:
                norms = (layer.output_norm, next_norm)
            mixed = self._attended(states, layer, positions, biases[layer.window])
            states, residual = self._added(mixed, layer.attention_output, residual, norms[0])
            active = self._activated(states, layer)
            states, residual = self._added(active, layer.down, residual, norms[1])
        return states

    def _added(
        self, states: torch.Tensor, linear: Linear, residual: torch.Tensor, norm: Norm | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The normalized sum, and what the next product is added to."""
        assert norm is not None
        added = residual + self._product(states, linear)
        normed = self._normed(added, norm)
        return normed, added if self._encoder.is_pre_norm else normed

    def _attended(
        self, states: torch.Tensor, layer: Layer, positions: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        rows, width, hidden = states.shape
        joined = self._product(states, layer.query_key_value)
        split = joined.view(rows, width, 3, self._shape.heads, self._shape.head_size).permute(2, 0, 3, 1, 4)
        queries, keys, values = split.unbind(0)
        if layer.rope_theta is not None:
            cosines, sines = self._rotations(positions, layer.rope_theta)
            queries, keys = (each * cosines + _half_turned(each) * sines for each in (queries, keys))
        mixed = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=bias)
        return mixed.transpose(1, 2).reshape(rows, width, hidden)

    def _activated(self, states: torch.Tensor, layer: Layer) -> torch.Tensor:
        up, activate = self._product(states, layer.up), _ACTIVATIONS[self._shape.activation]
        if not layer.is_gated:
            return activate(up)
        active, factor = up.chunk(2, dim=-1)
        return activate(active) * factor

    def _hidden(
        self, positions: torch.Tensor, texts: torch.Tensor | None, window: int | None
    ) -> torch.Tensor | None:
        """What is added to the scores of attention; None: nothing."""
        if texts is None and window is None and self._relative is None:
            return None
        distance = positions[:, None, :] - positions[:, :, None]
        seen = torch.ones_like(distance, dtype=torch.bool)
        if texts is not None:
            seen = texts[:, None, :] == texts[:, :, None]
        if window is not None:
            seen = seen & (distance.abs() <= window)
        bias = torch.zeros(distance.shape, dtype=self._dtype, device=self._device)
        bias = bias.masked_fill(~seen, _UNSEEN)[:, None]
        if self._relative is not None:
            most = self._shape.positions - 1
            by_head = functional.embedding((distance + most).clamp(0, 2 * most), self._relative)
            bias = bias + by_head.permute(0, 3, 1, 2)
        return bias

    def _rotations(self, positions: torch.Tensor, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
        size = self._shape.head_size
        powers = torch.arange(0, size, 2, dtype=torch.float32, device=self._device) / size
        angles = (positions[..., None].float() / theta**powers)[:, None]
        both = torch.cat((angles, angles), dim=-1)
        return both.cos().to(self._dtype), both.sin().to(self._dtype)

    def _scored(self, pooled: torch.Tensor, head: Head) -> torch.Tensor:
        states = self._product(pooled, head.dense)
        states = states.tanh() if head.activation == "tanh" else functional.gelu(states)
        if head.norm is not None:
            states = self._normed(states, head.norm)
        return self._product(states, head.output)

    def _normed(self, states: torch.Tensor, norm: Norm) -> torch.Tensor:
        pair = self._pair(norm, norm.weight, norm.bias)
        return functional.layer_norm(states, states.shape[-1:], pair.weight, pair.bias, norm.epsilon)

    def _product(self, states: torch.Tensor, linear: Linear) -> torch.Tensor:
        pair = self._pair(linear, linear.weight.T, linear.bias)
        return functional.linear(states, pair.weight, pair.bias)

    def _pair(self, of: Linear | Norm, weight: Floats, bias: Floats | None) -> _Pair:
        """Moved to the device when it is first needed, which is in the first call."""
        if id(of) not in self._kept:
            moved = None if bias is None else self._tensor(bias)
            self._kept[id(of)] = _Pair(self._tensor(weight), moved)
        return self._kept[id(of)]

    def _tensor(self, values: Floats) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device, self._dtype)


def _half_turned(values: torch.Tensor) -> torch.Tensor:
    low, high = values.chunk(2, dim=-1)
    return torch.cat((-high, low), dim=-1)


def take_share(share: float) -> None:
    """Of the GPU's memory this process uses no more than that part."""
    torch.cuda.set_per_process_memory_fraction(share)
