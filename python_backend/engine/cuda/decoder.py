"""A decoder on the GPU: rows of a step in, logits out; everything is launched and nothing awaited."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from python_backend.engine.adapters.adapter import Part
from python_backend.engine.cuda.experts import run_experts
from python_backend.engine.cuda.kernels.activation import activate_multiply
from python_backend.engine.cuda.kernels.decode_attention import Workspace, decode_attention
from python_backend.engine.cuda.kernels.normalization import add_rms_norm
from python_backend.engine.cuda.kernels.prefill_attention import PrefillWorkspace, prefill_attention
from python_backend.engine.cuda.kernels.rope import turn_and_store
from python_backend.engine.cuda.weights import Mlp
from python_backend.engine.models.decoder import Activation

if TYPE_CHECKING:
    from python_backend.engine.cuda.adapters import RowAdapters
    from python_backend.engine.cuda.kv_cache import KvCache
    from python_backend.engine.cuda.step import StepRows
    from python_backend.engine.cuda.weights import DeviceWeights, Layer
    from python_backend.engine.models.decoder import DecoderShape, Rope


class CudaDecoder:
    """`max_positions` bounds the tables of angles."""

    def __init__(self, shape: DecoderShape, weights: DeviceWeights, max_positions: int) -> None:
        self.shape = shape
        self._weights = weights
        self.device = device = weights.embeddings.device
        self.dtype = weights.embeddings.dtype
        self._angles = [_angles(rope, max_positions, device) for rope in shape.ropes]
        # As the reference does it: a number of the model's precision, too.
        self._embedding_scale = torch.tensor(shape.embedding_scale, dtype=self.dtype).item()
        self._is_gelu = shape.activation is Activation.GELU_TANH
        self._limit = shape.activation_limit if shape.activation is Activation.CLAMPED_SWIGLU else None
        self._fuses_single_rows = all(_is_plain(layer) for layer in weights.layers)
        self.make_room(0, 0)
        self._prefill_workspace = PrefillWorkspace(
            shape.heads, shape.kv_heads, shape.head_dim, self.dtype, device
        )

    def make_room(self, work: int, rows: int) -> None:
        """For lists of decoding work up to this length, and for steps of so many rows, some of them nobody's.

        Nobody's rows attend to nothing: they keep what was there before, which is some number.
        """
        shape = self.shape
        self._workspace = Workspace(work, shape.heads, shape.kv_heads, shape.head_dim, self.device)
        self._attended = torch.zeros(rows, shape.heads * shape.head_dim, dtype=self.dtype, device=self.device)

    def forward(self, rows: StepRows, cache: KvCache, block_tables: torch.Tensor) -> torch.Tensor:
        """The wanted rows as they come out of the last layer and its norm."""
        hidden = torch.embedding(self._weights.embeddings, rows.token_ids)
        if self._embedding_scale != 1.0:
            hidden *= self._embedding_scale
        delta = None
        adapters = rows.adapters
        if len(hidden) == 1 and self._fuses_single_rows and adapters is None:
            for index in range(self.shape.layers):
                self._run_single(index, hidden, rows, cache, block_tables)
            if rows.wanted_rows is not None:
                hidden = hidden.index_select(0, rows.wanted_rows)
        else:
            for index in range(self.shape.layers):
                attended = self._look_back(index, hidden, delta, rows, cache, block_tables)
                if rows.wanted_rows is not None and index == self.shape.layers - 1:
                    # Nobody reads what the last layer would make of the others.
                    hidden = hidden.index_select(0, rows.wanted_rows)
                    attended = attended.index_select(0, rows.wanted_rows)
                    adapters = None if adapters is None else adapters.chosen(rows.wanted_rows)
                if len(hidden):
                    delta = self._think(index, hidden, attended, adapters)
        if not len(hidden):
            return hidden
        return add_rms_norm(hidden, delta, self._weights.final_norm, self.shape.norm_epsilon)

    def _look_back(
        self,
        index: int,
        hidden: torch.Tensor,
        delta: torch.Tensor | None,
        rows: StepRows,
        cache: KvCache,
        block_tables: torch.Tensor,
    ) -> torch.Tensor:
        """Adds `delta` to the hidden rows and returns what attention finds for each."""
        layer, epsilon = self._weights.layers[index], self.shape.norm_epsilon
        normed = add_rms_norm(hidden, delta, layer.attention_norm, epsilon)
        qkv = layer.qkv(normed)
        if rows.adapters is not None:
            rows.adapters.add(index, Part.QUERY, normed, qkv)
        if layer.wide_norms is not None:
            self._norm_all_heads(qkv, *layer.wide_norms)
        return self._attend(index, qkv, rows, cache, block_tables)

    def _norm_all_heads(self, qkv: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> None:
        """All query heads as one row, and all key heads, in place."""
        keys_at = len(query)
        for part, weight in ((qkv[:, :keys_at], query), (qkv[:, keys_at : keys_at + len(key)], key)):
            part.copy_(add_rms_norm(part, None, weight, self.shape.norm_epsilon))

    def _think(
        self, index: int, hidden: torch.Tensor, attended: torch.Tensor, adapters: RowAdapters | None
    ) -> torch.Tensor | None:
        """The rest of a layer; returns what is still to be added to the hidden rows."""
        layer, epsilon = self._weights.layers[index], self.shape.norm_epsilon
        if layer.attention_out_norm is None:
            delta = layer.attention_out.onto(hidden, attended)
            if adapters is not None:
                adapters.add_onto(index, Part.ATTENTION_OUT, attended, hidden, delta)
        else:
            found = layer.attention_out(attended)
            if adapters is not None:
                adapters.add(index, Part.ATTENTION_OUT, attended, found)
            delta = add_rms_norm(found, None, layer.attention_out_norm, epsilon)
        normed = add_rms_norm(hidden, delta, layer.mlp_norm, epsilon)
        if isinstance(layer.mlp, Mlp):
            gates_ups = layer.mlp.gate_up(normed)
            if adapters is not None:
                adapters.add(index, Part.GATE, normed, gates_ups)
            gated = activate_multiply(gates_ups, self._is_gelu)
            if layer.mlp_out_norm is None:
                delta = layer.mlp.down.onto(hidden, gated)
                if adapters is not None:
                    adapters.add_onto(index, Part.DOWN, gated, hidden, delta)
                return delta
            thought = layer.mlp.down(gated)
            if adapters is not None:
                adapters.add(index, Part.DOWN, gated, thought)
        else:
            assert self.shape.experts is not None
            thought = run_experts(normed, layer.mlp, self.shape.experts, self._is_gelu, self._limit)
        if layer.mlp_out_norm is None:
            return thought
        return add_rms_norm(thought, None, layer.mlp_out_norm, epsilon)

    def _run_single(
        self, index: int, hidden: torch.Tensor, rows: StepRows, cache: KvCache, block_tables: torch.Tensor
    ) -> None:
        """A whole layer for one row, by products that also do what is around them."""
        layer, epsilon, row = self._weights.layers[index], self.shape.norm_epsilon, hidden[0]
        assert isinstance(layer.mlp, Mlp)
        assert layer.attention_norm is not None
        assert layer.mlp_norm is not None
        qkv = hidden.new_empty(1, layer.qkv.outputs)
        layer.qkv.times_row(row, qkv[0], norm=(layer.attention_norm, epsilon))
        attended = self._attend(index, qkv, rows, cache, block_tables)
        layer.attention_out.times_row(attended[0], row, residual=row)
        gate_up, down = layer.mlp.gate_up, layer.mlp.down
        gated = hidden.new_empty(down.inputs)
        gate_up.times_row(row, gated, norm=(layer.mlp_norm, epsilon), gated=True, is_gelu=self._is_gelu)
        down.times_row(gated, row, residual=row)

    def _attend(
        self, index: int, qkv: torch.Tensor, rows: StepRows, cache: KvCache, block_tables: torch.Tensor
    ) -> torch.Tensor:
        shape, layer = self.shape, self._weights.layers[index]
        keys, values, block_tables = cache.keys[index], cache.values[index], block_tables[cache.tables[index]]
        cosines, sines = self._angles[shape.rope_of_layer[index]]
        turn_and_store(
            qkv,
            keys,
            values,
            cosines,
            sines,
            layer.head_norms,
            shape.norm_epsilon,
            rows.slots,
            rows.positions,
            block_tables,
        )
        queries = qkv.view(len(qkv), -1, shape.head_dim)[:, : shape.heads]
        if len(qkv) <= len(self._attended):
            out = self._attended[: len(qkv)]
        else:
            out = qkv.new_zeros(len(qkv), shape.heads * shape.head_dim)
        window, softcap, scale = shape.windows[index], shape.attention_softcap, shape.query_scale
        if rows.work is not None:
            decode_attention(
                out,
                queries,
                keys,
                values,
                block_tables,
                rows.slots,
                rows.positions,
                rows.work,
                self._workspace,
                scale,
                window,
                softcap,
                sinks=layer.sinks,
            )
        if (chunks := rows.chunks) is not None:
            prefill_attention(
                out,
                queries,
                keys,
                values,
                block_tables,
                chunks.slots,
                chunks.first_rows,
                chunks.starts,
                chunks.tiles,
                self._prefill_workspace,
                scale,
                window,
                softcap,
                sinks=layer.sinks,
            )
        return out

    def write_logits(self, rows: torch.Tensor, logits: torch.Tensor) -> None:
        """The logits (fp32) of rows that `forward` gave."""
        self._weights.head.write_logits(rows, logits)
        if (cap := self.shape.logits_softcap) is not None:
            logits.div_(cap).tanh_().mul_(cap)


def _angles(rope: Rope, positions: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of every position, (positions, pairs) each."""
    frequencies = torch.from_numpy(rope.inverse_frequencies).to(device)
    angles = torch.arange(positions, dtype=torch.float32, device=device)[:, None] * frequencies
    return angles.cos() * rope.magnitude, angles.sin() * rope.magnitude


def _is_plain(layer: Layer) -> bool:
    """Whether a single row can go through the fused products."""
    norms = (layer.attention_out_norm, layer.mlp_out_norm, layer.wide_norms)
    return isinstance(layer.mlp, Mlp) and all(norm is None for norm in norms)
