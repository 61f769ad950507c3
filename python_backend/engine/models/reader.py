"""Takes a decoder's tensors out of a checkpoint, fused and ordered the way `LayerWeights` wants them."""

from __future__ import annotations

from functools import partial

import numpy as np

from python_backend.engine.checkpoint import TensorStore
from python_backend.engine.checkpoint.grouped import concatenated, of_rows, times
from python_backend.engine.models.decoder import DecoderShape, LayerWeights, Matrix, Weights
from python_backend.engine.models.expert_reader import read_experts
from python_backend.engine.models.layout import Layout
from python_backend.engine.models.rope import pair_up


class CheckpointWeights:
    """A `DecoderWeights` that reads from the checkpoint each time it is asked."""

    def __init__(self, checkpoint: TensorStore, shape: DecoderShape, layout: Layout) -> None:
        self.shape = shape
        self._checkpoint = checkpoint
        self._tensor = checkpoint.tensor
        self._layout = layout

    @property
    def quantized_bytes(self) -> int | None:
        return self._checkpoint.quantized_bytes

    def embeddings(self) -> Weights:
        return self._tensor("model.embed_tokens.weight", self.shape.vocabulary, self.shape.hidden)

    def final_norm(self) -> Weights:
        """Only the head reads what it gives, so that a factor of the logits can be one of its own."""
        return self._norm("model.norm", self.shape.hidden) * np.float32(self._layout.logits_scale)

    def head(self) -> Weights | None:
        if self._layout.is_tied:
            return None
        return self._tensor("lm_head.weight", self.shape.vocabulary, self.shape.hidden)

    def layer(self, index: int) -> LayerWeights:
        layout, shape, prefix = self._layout, self.shape, f"model.layers.{index}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        attended = shape.heads * shape.head_dim
        before_mlp = "pre_feedforward" if layout.has_output_norms else "post_attention"
        experts = read_experts(self._checkpoint, shape, layout, index)
        is_dense = experts is None
        return LayerWeights(
            attention_norm=self._input_norm(f"{prefix}.input_layernorm"),
            qkv=self._qkv(index),
            qkv_bias=self._qkv_bias(index) if layout.has_qkv_bias else None,
            attention_out=self._out(f"{attention}.o_proj", attended),
            attention_out_bias=self._out_bias(f"{attention}.o_proj", layout.has_attention_out_bias),
            query_norm=self._head_norm(f"{attention}.q_norm", index, shape.heads),
            key_norm=self._head_norm(f"{attention}.k_norm", index, shape.kv_heads),
            sinks=self._tensor(f"{attention}.sinks", shape.heads) if layout.has_sinks else None,
            mlp_norm=self._input_norm(f"{prefix}.{before_mlp}_layernorm"),
            gate_up=self._gate_up(mlp) if is_dense else None,
            gate_up_bias=self._gate_up_bias(mlp) if is_dense and layout.has_mlp_bias else None,
            down=self._out(f"{mlp}.down_proj", shape.intermediate) if is_dense else None,
            down_bias=self._out_bias(f"{mlp}.down_proj", is_dense and layout.has_mlp_bias),
            attention_out_norm=self._output_norm(f"{prefix}.post_attention_layernorm"),
            mlp_out_norm=self._output_norm(f"{prefix}.post_feedforward_layernorm"),
            experts=experts,
        )

    def _norm(self, name: str, width: int) -> Weights:
        return self._tensor(f"{name}.weight", width) + np.float32(self._layout.norm_offset)

    def _input_norm(self, name: str) -> Weights | None:
        return self._norm(name, self.shape.hidden) if self._layout.has_input_norms else None

    def _output_norm(self, name: str) -> Weights | None:
        return self._norm(name, self.shape.hidden) if self._layout.has_output_norms else None

    def _head_norm(self, name: str, index: int, heads: int) -> Weights | None:
        if not self._layout.has_head_norms:
            return None
        normed = heads if self._layout.norms_heads_together else 1
        norm = self._norm(name, normed * self.shape.head_dim)
        return pair_up(norm, normed, self._rotary_dim(index))

    def _out(self, name: str, inputs: int) -> Matrix:
        """What goes back into the residual."""
        matrix = self._checkpoint.matrix(f"{name}.weight", self.shape.hidden, inputs)
        return times(matrix, self._layout.residual_scale)

    def _out_bias(self, name: str, is_there: bool) -> Weights | None:
        if not is_there:
            return None
        return self._tensor(f"{name}.bias", self.shape.hidden) * np.float32(self._layout.residual_scale)

    def _rotary_dim(self, index: int) -> int:
        return 2 * len(self.shape.ropes[self.shape.rope_of_layer[index]].inverse_frequencies)

    def _qkv(self, index: int) -> Matrix:
        """Queries, keys and values, the first two in the order in which they turn."""
        shape, prefix = self.shape, f"model.layers.{index}.self_attn"
        q_rows, k_rows = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        rotary_dim, matrix = self._rotary_dim(index), self._checkpoint.matrix
        if self._layout.is_fused:
            fused = matrix(f"{prefix}.qkv_proj.weight", q_rows + 2 * k_rows, shape.hidden)
            q = of_rows(fused, lambda rows: rows[:q_rows])
            k = of_rows(fused, lambda rows: rows[q_rows : q_rows + k_rows])
            v = of_rows(fused, lambda rows: rows[q_rows + k_rows :])
        else:
            q = matrix(f"{prefix}.q_proj.weight", q_rows, shape.hidden)
            k = matrix(f"{prefix}.k_proj.weight", k_rows, shape.hidden)
            v = matrix(f"{prefix}.v_proj.weight", k_rows, shape.hidden)
        q = of_rows(q, partial(pair_up, heads=shape.heads, rotary_dim=rotary_dim))
        k = of_rows(k, partial(pair_up, heads=shape.kv_heads, rotary_dim=rotary_dim))
        return concatenated([q, k, v])

    def _qkv_bias(self, index: int) -> Weights:
        shape, prefix = self.shape, f"model.layers.{index}.self_attn"
        q_rows, k_rows = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        if self._layout.is_fused:
            fused = self._tensor(f"{prefix}.qkv_proj.bias", q_rows + 2 * k_rows)
            q, k, v = np.split(fused, (q_rows, q_rows + k_rows))
        else:
            q, k, v = (
                self._tensor(f"{prefix}.{part}_proj.bias", rows)
                for part, rows in (("q", q_rows), ("k", k_rows), ("v", k_rows))
            )
        rotary_dim = self._rotary_dim(index)
        return np.concatenate(
            (pair_up(q, shape.heads, rotary_dim), pair_up(k, shape.kv_heads, rotary_dim), v)
        )

    def _gate_up(self, prefix: str) -> Matrix:
        rows, hidden, matrix = self.shape.intermediate, self.shape.hidden, self._checkpoint.matrix
        if self._layout.is_fused:
            return matrix(f"{prefix}.gate_up_proj.weight", 2 * rows, hidden)
        return concatenated([matrix(f"{prefix}.{part}_proj.weight", rows, hidden) for part in ("gate", "up")])

    def _gate_up_bias(self, prefix: str) -> Weights:
        rows = self.shape.intermediate
        if self._layout.is_fused:
            return self._tensor(f"{prefix}.gate_up_proj.bias", 2 * rows)
        return np.concatenate([self._tensor(f"{prefix}.{part}_proj.bias", rows) for part in ("gate", "up")])
