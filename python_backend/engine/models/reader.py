"""Takes a decoder's tensors out of a checkpoint, fused and ordered the way `LayerWeights` wants them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from python_backend.engine.checkpoint import TensorStore
from python_backend.engine.models.decoder import (
    DecoderShape,
    ExpertWeights,
    LayerWeights,
    Weights,
)
from python_backend.engine.models.rope import pair_up


@dataclass(frozen=True, slots=True)
class ExpertLayout:
    """Where experts are, in the order of preference; `gate`, `up` and `down` name the parts of one.

    `is_sparse(i)`: whether layer i has experts at all.
    """

    prefixes: tuple[str, ...]
    gate: str
    up: str
    down: str
    is_sparse: Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class Layout:
    """Which of the optional tensors a family has, and where it departs from Llama's names."""

    is_tied: bool
    has_qkv_bias: bool = False
    has_attention_out_bias: bool = False
    has_mlp_bias: bool = False
    has_head_norms: bool = False
    has_sandwich_norms: bool = False
    is_fused: bool = False
    norm_offset: float = 0.0
    experts: ExpertLayout | None = None


class CheckpointWeights:
    """A `DecoderWeights` that reads from the checkpoint each time it is asked."""

    def __init__(self, checkpoint: TensorStore, shape: DecoderShape, layout: Layout) -> None:
        self.shape = shape
        self._checkpoint = checkpoint
        self._tensor = checkpoint.tensor
        self._layout = layout

    def embeddings(self) -> Weights:
        return self._tensor("model.embed_tokens.weight", self.shape.vocabulary, self.shape.hidden)

    def final_norm(self) -> Weights:
        return self._norm("model.norm", self.shape.hidden)

    def head(self) -> Weights | None:
        if self._layout.is_tied:
            return None
        return self._tensor("lm_head.weight", self.shape.vocabulary, self.shape.hidden)

    def layer(self, index: int) -> LayerWeights:
        layout, shape, prefix = self._layout, self.shape, f"model.layers.{index}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        attended = shape.heads * shape.head_dim
        before_mlp = "pre_feedforward" if layout.has_sandwich_norms else "post_attention"
        experts = self._experts(index)
        is_dense = experts is None
        return LayerWeights(
            attention_norm=self._norm(f"{prefix}.input_layernorm", shape.hidden),
            qkv=self._qkv(index, "weight", shape.hidden),
            qkv_bias=self._qkv(index, "bias") if layout.has_qkv_bias else None,
            attention_out=self._tensor(f"{attention}.o_proj.weight", shape.hidden, attended),
            attention_out_bias=self._bias(f"{attention}.o_proj", layout.has_attention_out_bias),
            query_norm=self._head_norm(f"{attention}.q_norm", index),
            key_norm=self._head_norm(f"{attention}.k_norm", index),
            mlp_norm=self._norm(f"{prefix}.{before_mlp}_layernorm", shape.hidden),
            gate_up=self._gate_up(mlp, "weight", shape.hidden) if is_dense else None,
            gate_up_bias=self._gate_up(mlp, "bias") if is_dense and layout.has_mlp_bias else None,
            down=self._tensor(f"{mlp}.down_proj.weight", shape.hidden, shape.intermediate)
            if is_dense
            else None,
            down_bias=self._bias(f"{mlp}.down_proj", is_dense and layout.has_mlp_bias),
            attention_out_norm=self._sandwich_norm(f"{prefix}.post_attention_layernorm"),
            mlp_out_norm=self._sandwich_norm(f"{prefix}.post_feedforward_layernorm"),
            experts=experts,
        )

    def _norm(self, name: str, width: int) -> Weights:
        return self._tensor(f"{name}.weight", width) + np.float32(self._layout.norm_offset)

    def _sandwich_norm(self, name: str) -> Weights | None:
        return self._norm(name, self.shape.hidden) if self._layout.has_sandwich_norms else None

    def _head_norm(self, name: str, index: int) -> Weights | None:
        if not self._layout.has_head_norms:
            return None
        return pair_up(self._norm(name, self.shape.head_dim), 1, self._rotary_dim(index))

    def _bias(self, name: str, is_there: bool) -> Weights | None:
        return self._tensor(f"{name}.bias", self.shape.hidden) if is_there else None

    def _rotary_dim(self, index: int) -> int:
        return 2 * len(self.shape.ropes[self.shape.rope_of_layer[index]].inverse_frequencies)

    def _qkv(self, index: int, kind: str, *columns: int) -> Weights:
        """Weight or bias of queries, keys and values, the first two in the order in which they turn."""
        shape, prefix = self.shape, f"model.layers.{index}.self_attn"
        query_rows, key_rows = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        if self._layout.is_fused:
            fused = self._tensor(f"{prefix}.qkv_proj.{kind}", query_rows + 2 * key_rows, *columns)
            q, k, v = np.split(fused, (query_rows, query_rows + key_rows))
        else:
            q = self._tensor(f"{prefix}.q_proj.{kind}", query_rows, *columns)
            k = self._tensor(f"{prefix}.k_proj.{kind}", key_rows, *columns)
            v = self._tensor(f"{prefix}.v_proj.{kind}", key_rows, *columns)
        rotary_dim = self._rotary_dim(index)
        return np.concatenate(
            (pair_up(q, shape.heads, rotary_dim), pair_up(k, shape.kv_heads, rotary_dim), v)
        )

    def _gate_up(self, prefix: str, kind: str, *columns: int) -> Weights:
        rows = self.shape.intermediate
        if self._layout.is_fused:
            return self._tensor(f"{prefix}.gate_up_proj.{kind}", 2 * rows, *columns)
        names = (f"{prefix}.gate_proj.{kind}", f"{prefix}.up_proj.{kind}")
        return np.concatenate([self._tensor(name, rows, *columns) for name in names])

    def _experts(self, index: int) -> ExpertWeights | None:
        layout, experts = self._layout.experts, self.shape.experts
        if layout is None or experts is None or not layout.is_sparse(index):
            return None
        places = [f"model.layers.{index}.{prefix}" for prefix in layout.prefixes]
        place = next((place for place in places if f"{place}.gate.weight" in self._checkpoint), places[0])
        hidden, rows = self.shape.hidden, experts.intermediate
        router = self._tensor(f"{place}.gate.weight", experts.count, hidden)
        if f"{place}.experts.gate_up_proj" in self._checkpoint:
            return ExpertWeights(
                router,
                self._tensor(f"{place}.experts.gate_up_proj", experts.count, 2 * rows, hidden),
                self._tensor(f"{place}.experts.down_proj", experts.count, hidden, rows),
            )
        gate_up = np.empty((experts.count, 2 * rows, hidden), dtype=np.float32)
        down = np.empty((experts.count, hidden, rows), dtype=np.float32)
        for expert in range(experts.count):
            name = f"{place}.experts.{expert}"
            gate_up[expert, :rows] = self._tensor(f"{name}.{layout.gate}.weight", rows, hidden)
            gate_up[expert, rows:] = self._tensor(f"{name}.{layout.up}.weight", rows, hidden)
            down[expert] = self._tensor(f"{name}.{layout.down}.weight", hidden, rows)
        return ExpertWeights(router, gate_up, down)
