"""Computes any `DecoderWeights` with torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch.nn.functional import embedding, gelu, silu, softmax

from benchmarks.torch_model.linear import Linear, packing_pays
from benchmarks.torch_model.norm import RmsNorm
from python_backend.engine.models.decoder import Activation

if TYPE_CHECKING:
    from python_backend.engine.models.decoder import (
        DecoderShape,
        DecoderWeights,
        ExpertShape,
        ExpertWeights,
        LayerWeights,
        Rope,
        Weights,
    )

Activate = Callable[[torch.Tensor], torch.Tensor]


def _gelu_tanh(rows: torch.Tensor) -> torch.Tensor:
    return gelu(rows, approximate="tanh")


_ACTIVATIONS: dict[Activation, Activate] = {Activation.SILU: silu, Activation.GELU_TANH: _gelu_tanh}


class Attention(Protocol):
    """Knows which row of the batch belongs to which sequence, and how each layer looks back."""

    def __call__(self, layer: int, queries: torch.Tensor, keys_values: torch.Tensor) -> torch.Tensor:
        """From (rows, query_heads, head_dim) and rows of keys, then values, to (rows, heads side by side)."""


class TorchDecoder:
    def __init__(self, weights: DecoderWeights) -> None:
        self.shape = weights.shape
        pack = packing_pays(_fp32_bytes(self.shape))
        self._ropes = [_Turning(rope) for rope in self.shape.ropes]
        self._embeddings = torch.from_numpy(weights.embeddings())
        self._layers = [_Layer(self.shape, weights.layer(index), pack) for index in range(self.shape.layers)]
        self._final_norm = RmsNorm(torch.from_numpy(weights.final_norm()), self.shape.norm_epsilon)
        head = weights.head()
        self._head = Linear(self._embeddings if head is None else torch.from_numpy(head), pack=pack)

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: Attention,
        wanted_rows: torch.Tensor,
    ) -> torch.Tensor:
        shape = self.shape
        hidden = embedding(token_ids, self._embeddings)
        if shape.embedding_scale != 1.0:
            hidden *= shape.embedding_scale
        factors = [turning.factors(positions) for turning in self._ropes]
        for index, layer in enumerate(self._layers):
            hidden += layer.attend(hidden, factors[shape.rope_of_layer[index]], attention, index)
            hidden += layer.think(hidden)
        logits = self._head(self._final_norm(hidden[wanted_rows]))
        if shape.logits_softcap is not None:
            logits.div_(shape.logits_softcap).tanh_().mul_(shape.logits_softcap)
        return logits


def _fp32_bytes(shape: DecoderShape) -> int:
    """About what all weights take."""
    attention = 2 * (shape.heads + shape.kv_heads) * shape.head_dim * shape.hidden
    mlp = 3 * shape.hidden * shape.intermediate
    if shape.experts is not None:
        mlp = max(mlp, 3 * shape.hidden * shape.experts.intermediate * shape.experts.count)
    return 4 * (shape.layers * (attention + mlp) + shape.vocabulary * shape.hidden)


class _Turning:
    """Rotary embedding as one complex product with pairs that lie side by side."""

    def __init__(self, rope: Rope) -> None:
        self._inverse_frequencies = torch.from_numpy(rope.inverse_frequencies)
        self._magnitude = torch.full_like(self._inverse_frequencies, rope.magnitude)

    def factors(self, positions: torch.Tensor) -> torch.Tensor:
        """By what every head of a row is multiplied: (rows, 1, rotary_dim / 2)."""
        angles = positions[:, None, None].float() * self._inverse_frequencies
        return torch.polar(self._magnitude.expand_as(angles), angles)


def _turn_(heads: torch.Tensor, factors: torch.Tensor) -> None:
    """Turns the first dimensions of (rows, heads, head_dim) in place."""
    rows, count, head_dim = heads.shape
    pairs = torch.view_as_complex(heads.view(rows, count, head_dim // 2, 2))
    if factors.shape[-1] < pairs.shape[-1]:
        pairs = pairs[..., : factors.shape[-1]]
    pairs.mul_(factors)


@dataclass(frozen=True, slots=True)
class _Mlp:
    gate_up: Linear
    down: Linear
    activate: Activate

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(rows).chunk(2, dim=-1)
        return self.down(self.activate(gate).mul_(up))


class _Experts:
    """Rows go to their experts in groups, and what comes back is added up by share."""

    def __init__(self, shape: ExpertShape, weights: ExpertWeights, activate: Activate, pack: bool) -> None:
        self._shape = shape
        self._router = Linear(torch.from_numpy(weights.router), pack=False)
        self._experts = [
            _Mlp(_linear(weights.gate_up[i], None, pack), _linear(weights.down[i], None, pack), activate)
            for i in range(shape.count)
        ]

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        shares, chosen = softmax(self._router(rows), dim=-1).topk(self._shape.per_token, dim=-1)
        if self._shape.renormalizes:
            shares /= shares.sum(dim=-1, keepdim=True)
        together = torch.zeros_like(rows)
        for expert in sorted(set(chosen.flatten().tolist())):
            taken, rank = (chosen == expert).nonzero(as_tuple=True)
            answer = self._experts[expert](rows[taken])
            together.index_add_(0, taken, answer.mul_(shares[taken, rank, None]))
        return together


class _Layer:
    def __init__(self, shape: DecoderShape, weights: LayerWeights, pack: bool) -> None:
        self._shape = shape
        self._attention_norm = self._norm(weights.attention_norm)
        self._qkv = _linear(weights.qkv, weights.qkv_bias, pack)
        self._head_norm = self._norm_of_heads(weights.query_norm, weights.key_norm)
        self._attention_out = _linear(weights.attention_out, weights.attention_out_bias, pack)
        self._attention_out_norm = self._optional_norm(weights.attention_out_norm)
        self._mlp_norm = self._norm(weights.mlp_norm)
        self._mlp = self._make_mlp(weights, pack)
        self._mlp_out_norm = self._optional_norm(weights.mlp_out_norm)

    def attend(
        self, hidden: torch.Tensor, factors: torch.Tensor, attention: Attention, index: int
    ) -> torch.Tensor:
        shape = self._shape
        qkv = self._qkv(self._attention_norm(hidden))
        heads = qkv.view(len(qkv), -1, shape.head_dim)
        turning = heads[:, : shape.heads + shape.kv_heads]
        if self._head_norm is not None:
            turning.copy_(self._head_norm(turning))
        _turn_(turning, factors)
        keys_values = qkv[:, shape.heads * shape.head_dim :]
        out = self._attention_out(attention(index, heads[:, : shape.heads], keys_values))
        return out if self._attention_out_norm is None else self._attention_out_norm(out)

    def think(self, hidden: torch.Tensor) -> torch.Tensor:
        out = self._mlp(self._mlp_norm(hidden))
        return out if self._mlp_out_norm is None else self._mlp_out_norm(out)

    def _make_mlp(self, weights: LayerWeights, pack: bool) -> _Mlp | _Experts:
        activate = _ACTIVATIONS[self._shape.activation]
        if weights.experts is not None and self._shape.experts is not None:
            return _Experts(self._shape.experts, weights.experts, activate, pack)
        assert weights.gate_up is not None
        assert weights.down is not None
        gate_up = _linear(weights.gate_up, weights.gate_up_bias, pack)
        return _Mlp(gate_up, _linear(weights.down, weights.down_bias, pack), activate)

    def _norm(self, weight: Weights) -> RmsNorm:
        return RmsNorm(torch.from_numpy(weight), self._shape.norm_epsilon)

    def _optional_norm(self, weight: Weights | None) -> RmsNorm | None:
        return None if weight is None else self._norm(weight)

    def _norm_of_heads(self, query: Weights | None, key: Weights | None) -> RmsNorm | None:
        """One norm for the query and the key heads, which lie side by side."""
        if query is None or key is None:
            return None
        rows = [torch.from_numpy(query)] * self._shape.heads + [torch.from_numpy(key)] * self._shape.kv_heads
        return RmsNorm(torch.stack(rows), self._shape.norm_epsilon)


def _linear(weight: Weights, bias: Weights | None, pack: bool) -> Linear:
    return Linear(torch.from_numpy(weight), None if bias is None else torch.from_numpy(bias), pack=pack)
