"""Computes any `DecoderWeights` with torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch.nn.functional import embedding, gelu, silu, softmax

from benchmarks.torch_model.linear import Linear, packing_pays
from benchmarks.torch_model.norm import RmsNorm
from python_backend.engine.models.decoder import Activation, dense

if TYPE_CHECKING:
    from python_backend.engine.models.decoder import (
        DecoderShape,
        DecoderWeights,
        ExpertShape,
        ExpertWeights,
        LayerWeights,
        Matrix,
        Rope,
        Weights,
    )

# From gates and ups to what goes into the second product.
Activate = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _activate(shape: DecoderShape) -> Activate:
    def clamped_swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        gate, up = (
            gate.clamp(max=shape.activation_limit),
            up.clamp(-shape.activation_limit, shape.activation_limit),
        )
        return gate * torch.sigmoid(1.702 * gate) * (up + 1)

    if shape.activation is Activation.CLAMPED_SWIGLU:
        return clamped_swiglu
    if shape.activation is Activation.GELU_TANH:
        return lambda gate, up: gelu(gate, approximate="tanh").mul_(up)
    return lambda gate, up: silu(gate).mul_(up)


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
        return self.down(self.activate(*self.gate_up(rows).chunk(2, dim=-1)))


class _Experts:
    """Rows go to their experts in groups, and what comes back is added up by share."""

    def __init__(self, shape: ExpertShape, weights: ExpertWeights, activate: Activate, pack: bool) -> None:
        self._shape = shape
        self._router = _linear(weights.router, weights.router_bias, False)
        gate_up, down = dense(weights.gate_up), dense(weights.down)

        def one(matrices: Weights, biases: Weights | None, index: int) -> Linear:
            return _linear(matrices[index], None if biases is None else biases[index], pack)

        self._experts = [
            _Mlp(one(gate_up, weights.gate_up_bias, i), one(down, weights.down_bias, i), activate)
            for i in range(shape.total)
        ]

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        scores, shape = self._router(rows), self._shape
        shares, chosen = softmax(scores[:, : shape.count], dim=-1).topk(shape.per_token, dim=-1)
        if shape.renormalizes:
            shares /= shares.sum(dim=-1, keepdim=True)
        if shape.shared:
            of_all = torch.arange(shape.count, shape.total).expand(len(rows), -1)
            chosen = torch.cat([chosen, of_all], dim=1)
            shares = torch.cat([shares, scores[:, -1:].sigmoid().expand(-1, shape.shared)], dim=1)
        together = torch.zeros_like(rows)
        for expert in sorted(set(chosen.flatten().tolist())):
            taken, rank = (chosen == expert).nonzero(as_tuple=True)
            answer = self._experts[expert](rows[taken])
            together.index_add_(0, taken, answer.mul_(shares[taken, rank, None]))
        return together


class _Layer:
    def __init__(self, shape: DecoderShape, weights: LayerWeights, pack: bool) -> None:
        self._shape = shape
        self._attention_norm = self._optional_norm(weights.attention_norm)
        self._qkv = _linear(weights.qkv, weights.qkv_bias, pack)
        self._query_norm = self._optional_norm(weights.query_norm)
        self._key_norm = self._optional_norm(weights.key_norm)
        self._attention_out = _linear(weights.attention_out, weights.attention_out_bias, pack)
        self._attention_out_norm = self._optional_norm(weights.attention_out_norm)
        self._mlp_norm = self._optional_norm(weights.mlp_norm)
        self._mlp = self._make_mlp(weights, pack)
        self._mlp_out_norm = self._optional_norm(weights.mlp_out_norm)

    def attend(
        self, hidden: torch.Tensor, factors: torch.Tensor, attention: Attention, index: int
    ) -> torch.Tensor:
        shape = self._shape
        qkv = self._qkv(hidden if self._attention_norm is None else self._attention_norm(hidden))
        heads = qkv.view(len(qkv), -1, shape.head_dim)
        first, last = shape.heads * shape.head_dim, (shape.heads + shape.kv_heads) * shape.head_dim
        _norm_(qkv[:, :first], self._query_norm)
        _norm_(qkv[:, first:last], self._key_norm)
        _turn_(heads[:, : shape.heads + shape.kv_heads], factors)
        keys_values = qkv[:, first:]
        out = self._attention_out(attention(index, heads[:, : shape.heads], keys_values))
        return out if self._attention_out_norm is None else self._attention_out_norm(out)

    def think(self, hidden: torch.Tensor) -> torch.Tensor:
        out = self._mlp(hidden if self._mlp_norm is None else self._mlp_norm(hidden))
        return out if self._mlp_out_norm is None else self._mlp_out_norm(out)

    def _make_mlp(self, weights: LayerWeights, pack: bool) -> _Mlp | _Experts:
        activate = _activate(self._shape)
        if weights.experts is not None and self._shape.experts is not None:
            return _Experts(self._shape.experts, weights.experts, activate, pack)
        assert weights.gate_up is not None
        assert weights.down is not None
        gate_up = _linear(weights.gate_up, weights.gate_up_bias, pack)
        return _Mlp(gate_up, _linear(weights.down, weights.down_bias, pack), activate)

    def _optional_norm(self, weight: Weights | None) -> RmsNorm | None:
        return None if weight is None else RmsNorm(torch.from_numpy(weight), self._shape.norm_epsilon)


def _norm_(rows: torch.Tensor, norm: RmsNorm | None) -> None:
    """Norms heads in place: each, or all as one, as the weight is wide."""
    if norm is not None:
        parts = rows.reshape(len(rows), -1, norm.width)
        rows.copy_(norm(parts).reshape(rows.shape))


def _linear(weight: Matrix, bias: Weights | None, pack: bool) -> Linear:
    return Linear(
        torch.from_numpy(dense(weight)), None if bias is None else torch.from_numpy(bias), pack=pack
    )
