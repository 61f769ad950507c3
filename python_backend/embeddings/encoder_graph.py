"""An encoder as an ONNX graph: rows of packed texts in, one vector, or one score, for each text out.

Its inputs are, for each place of each row: `ids`, `positions`, `types` of segments, and `texts`, the number
of the text that the place belongs to, by which texts in one row do not see each other. `pooling` says what
part each place has in the result of each text.
"""

from __future__ import annotations

import numpy as np

from python_backend.embeddings.graph import Graph, Session
from python_backend.embeddings.layers import Encoder, Floats, Head, Layer, Linear, Norm
from python_backend.embeddings.packing import WIDEST_SHARED

_UNSEEN = np.float32(-1e9)
_ACTIVATIONS = {"gelu": ("Gelu", {}), "silu": ("QuickGelu", {"alpha": 1.0})}


def encoder_session(encoder: Encoder, head: Head | None, threads: int) -> Session:
    return _Drawing(encoder).session(head, threads)


class _Drawing:
    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._shape = encoder.shape
        self._graph = Graph()
        self._biases: dict[int | None, str] = {}
        self._caches: dict[float, tuple[str, str]] = {}
        graph = self._graph
        self._ids, self._positions = graph.input("ids", 2), graph.input("positions", 2)
        self._texts = graph.input("texts", 2)
        hidden = graph.weight(np.array([self._shape.hidden], np.int64))
        self._by_row = graph.add("Concat", graph.add("Shape", self._ids), hidden, axis=0)
        self._by_token = graph.weight(np.array([-1, self._shape.hidden], np.int64))

    def session(self, head: Head | None, threads: int) -> Session:
        graph = self._graph
        states = self._layers(self._embedded())
        pooled = graph.add("MatMul", graph.input("pooling", 2, is_float=True), states)
        return graph.session(pooled if head is None else self._scored(pooled, head), threads)

    def _embedded(self) -> str:
        graph, encoder = self._graph, self._encoder
        states = graph.add("Gather", graph.weight(encoder.words), self._ids)
        if encoder.positions is not None:
            states = graph.add(
                "Add", states, graph.add("Gather", graph.weight(encoder.positions), self._positions)
            )
        if encoder.types is not None:
            types = graph.add("Gather", graph.weight(encoder.types), graph.input("types", 2))
            states = graph.add("Add", states, types)
        return self._normed(graph.add("Reshape", states, self._by_token), encoder.embedding_norm)

    def _layers(self, states: str) -> str:
        """`residual` is what the next product is added to; with norms first it is not what is multiplied."""
        residual = states
        layers, is_pre_norm = self._encoder.layers, self._encoder.is_pre_norm
        for index, layer in enumerate(layers):
            following = (
                layers[index + 1].attention_norm if index + 1 < len(layers) else self._encoder.final_norm
            )
            norms = (
                (layer.output_norm, following) if is_pre_norm else (layer.attention_norm, layer.output_norm)
            )
            mixed = self._attended(states, layer)
            states, added = self._added(mixed, layer.attention_output, residual, norms[0])
            residual = added if is_pre_norm else states
            active = self._activated(states, layer)
            states, added = self._added(active, layer.down, residual, norms[1])
            residual = added if is_pre_norm else states
        return states

    def _attended(self, states: str, layer: Layer) -> str:
        graph, heads = self._graph, self._shape.heads
        joined = self._product(states, layer.query_key_value)
        parts = graph.add_many("Split", 3, joined, axis=1, num_outputs=3)
        queries, keys, values = (graph.add("Reshape", part, self._by_row) for part in parts)
        if layer.rope_theta is not None:
            cosines, sines = self._rotations(layer.rope_theta)
            queries, keys = (
                graph.fused("RotaryEmbedding", each, self._positions, cosines, sines)
                for each in (queries, keys)
            )
        seen = self._seen(layer.window)
        mixed = graph.fused("MultiHeadAttention", queries, keys, values, "", "", seen, num_heads=heads)
        return graph.add("Reshape", mixed, self._by_token)

    def _product(self, states: str, linear: Linear) -> str:
        weight = self._graph.weight(linear.weight)
        if linear.bias is None:
            return self._graph.add("MatMul", states, weight)
        return self._graph.add("Gemm", states, weight, self._graph.weight(linear.bias))

    def _activated(self, states: str, layer: Layer) -> str:
        graph = self._graph
        kind, attributes = _ACTIVATIONS[self._shape.activation]
        up = self._product(states, layer.up)
        if layer.is_gated:
            active, factor = graph.add_many("Split", 2, up, axis=1, num_outputs=2)
            return graph.add("Mul", graph.fused(kind, active, **attributes), factor)
        return graph.fused(kind, up, **attributes)

    def _added(self, states: str, linear: Linear, residual: str, norm: Norm | None) -> tuple[str, str]:
        """The normalized sum, and the sum."""
        assert norm is not None
        added = self._graph.add("Add", self._product(states, linear), residual)
        return self._normed(added, norm), added

    def _normed(self, states: str, norm: Norm) -> str:
        weights = [self._graph.weight(each) for each in (norm.weight, norm.bias) if each is not None]
        return self._graph.add("LayerNormalization", states, *weights, axis=-1, epsilon=norm.epsilon)

    def _rotations(self, theta: float) -> tuple[str, str]:
        if theta not in self._caches:
            size = self._shape.head_size
            inverse = 1.0 / theta ** (np.arange(0, size, 2, dtype=np.float32) / np.float32(size))
            # Nobody has a position beyond the model's own, but rows may be wider, and the operator asks that.
            places = max(self._shape.positions, WIDEST_SHARED)
            angles = np.outer(np.arange(places, dtype=np.float32), inverse.astype(np.float32))
            cosines, sines = np.cos(angles), np.sin(angles)
            self._caches[theta] = self._graph.weight(cosines), self._graph.weight(sines)
        return self._caches[theta]

    def _seen(self, window: int | None) -> str:
        """What is added to the scores of attention: nothing within a text, nearly -∞ beyond."""
        if window not in self._biases:
            graph = self._graph
            seen = graph.add("Equal", *self._across(self._texts))
            if window is not None:
                distance = graph.add("Abs", graph.add("Sub", *self._across(self._positions)))
                near = graph.add("LessOrEqual", distance, graph.weight(np.array(window, np.int64)))
                seen = graph.add("And", seen, near)
            nothing, unseen = graph.weight(np.zeros((), np.float32)), graph.weight(_UNSEEN.reshape(()))
            bias = graph.add("Where", seen, nothing, unseen)
            bias = graph.add("Unsqueeze", bias, graph.weight(np.array([1], np.int64)))
            if self._encoder.relative is not None:
                bias = graph.add("Add", bias, self._relative(self._encoder.relative))
            self._biases[window] = bias
        return self._biases[window]

    def _across(self, values: str) -> tuple[str, str]:
        """For each pair of places: what the one that looks has, and what the one that is looked at has."""
        axes = (self._graph.weight(np.array([axis], np.int64)) for axis in (2, 1))
        looking, seen = (self._graph.add("Unsqueeze", values, axis) for axis in axes)
        return looking, seen

    def _relative(self, relative: Floats) -> str:
        graph, most = self._graph, self._shape.positions - 1
        looking, seen = self._across(self._positions)
        distance = graph.add("Add", graph.add("Sub", seen, looking), graph.weight(np.array(most, np.int64)))
        ends = (graph.weight(np.array(end, np.int64)) for end in (0, 2 * most))
        values = graph.add("Gather", graph.weight(relative), graph.add("Clip", distance, *ends))
        return graph.add("Transpose", values, perm=[0, 3, 1, 2])

    def _scored(self, pooled: str, head: Head) -> str:
        graph = self._graph
        states = self._product(pooled, head.dense)
        states = graph.add("Tanh", states) if head.activation == "tanh" else graph.fused("Gelu", states)
        if head.norm is not None:
            states = self._normed(states, head.norm)
        return self._product(states, head.output)
