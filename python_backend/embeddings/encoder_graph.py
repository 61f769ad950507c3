"""An encoder as an ONNX graph: rows of packed texts in, one vector, or one score, for each text out.

Its inputs are, for each place of each row: `ids`, `positions`, `types` of segments, and `texts`, the number
of the text that the place belongs to, by which texts in one row do not see each other. `pooling` says what
part each place has in the result of each text.
"""

from __future__ import annotations

import numpy as np

from python_backend.embeddings.graph import Graph, Session
from python_backend.embeddings.layers import Encoder, Floats, Head, Layer, Linear, Norm, Rope
from python_backend.embeddings.packing import WIDEST_SHARED
from python_backend.embeddings.products import Products, RoundedProducts

_UNSEEN = np.float32(-1e9)
_ACTIVATIONS = {"gelu": ("Gelu", {}), "silu": ("QuickGelu", {"alpha": 1.0})}
_PRODUCTS = {"fp32": Products, "int8": RoundedProducts}


def encoder_session(encoder: Encoder, head: Head | None, threads: int, precision: str) -> Session:
    """`precision` is that of the products in its layers."""
    return _Drawing(encoder, precision).session(head, threads)


class _Drawing:
    def __init__(self, encoder: Encoder, precision: str) -> None:
        self._encoder = encoder
        self._shape = encoder.shape
        self._graph = Graph()
        self._products = _PRODUCTS[precision](self._graph)
        self._biases: dict[int | None, str] = {}
        self._caches: dict[Rope, tuple[str, str]] = {}
        graph = self._graph
        self._ids, self._positions = graph.input("ids", 2), graph.input("positions", 2)
        self._texts = graph.input("texts", 2)
        whatever = graph.weight(np.array([-1], np.int64))
        self._by_row = graph.add("Concat", graph.add("Shape", self._ids), whatever, axis=0)
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
        run = self._pre_normed if self._encoder.is_pre_norm else self._post_normed
        for layer in self._encoder.layers:
            states = run(states, layer)
        return self._normed(states, self._encoder.final_norm)

    def _pre_normed(self, states: str, layer: Layer) -> str:
        mixed = self._attended(self._normed(states, layer.attention_norm), layer)
        states = self._added(mixed, layer.attention_output, states)
        return self._added(
            self._activated(self._normed(states, layer.output_norm), layer), layer.down, states
        )

    def _post_normed(self, states: str, layer: Layer) -> str:
        added = self._added(self._attended(states, layer), layer.attention_output, states)
        states = self._normed(added, layer.attention_norm)
        return self._normed(
            self._added(self._activated(states, layer), layer.down, states), layer.output_norm
        )

    def _attended(self, states: str, layer: Layer) -> str:
        graph, shape = self._graph, self._shape
        joined = self._products.add(states, layer.query_key_value)
        widths = [count * shape.head_size for count in (shape.heads, shape.kv_heads, shape.kv_heads)]
        parts = graph.add_many("Split", 3, joined, graph.weight(np.array(widths, np.int64)), axis=1)
        queries, keys = (
            self._normed_heads(parts[0], layer.query_norm),
            self._normed_heads(parts[1], layer.key_norm),
        )
        queries, keys, values = (
            graph.add("Reshape", part, self._by_row) for part in (queries, keys, parts[2])
        )
        if layer.rope is not None:
            tables = self._rotations(layer.rope)
            queries, keys = (
                graph.fused(
                    "RotaryEmbedding", each, self._positions, *tables, interleaved=int(layer.rope.is_paired)
                )
                for each in (queries, keys)
            )
        keys, values = self._repeated(keys), self._repeated(values)
        seen = self._seen(layer.window)
        mixed = graph.fused("MultiHeadAttention", queries, keys, values, "", "", seen, num_heads=shape.heads)
        return graph.add("Reshape", mixed, graph.weight(np.array([-1, widths[0]], np.int64)))

    def _normed_heads(self, states: str, norm: Norm | None) -> str:
        if norm is None:
            return states
        by_head = self._graph.weight(np.array([-1, self._shape.head_size], np.int64))
        return self._normed(self._graph.add("Reshape", states, by_head), norm)

    def _repeated(self, states: str) -> str:
        """Each head of keys, or of values, for all heads of queries that share it."""
        graph, shape = self._graph, self._shape
        if shape.heads == shape.kv_heads:
            return states
        sizes = (shape.kv_heads, shape.heads // shape.kv_heads, shape.head_size)
        split = graph.add("Reshape", states, graph.weight(np.array([-1, sizes[0], 1, sizes[2]], np.int64)))
        wide = graph.add("Expand", split, graph.weight(np.array([1, *sizes], np.int64)))
        return graph.add("Reshape", wide, self._by_row)

    def _activated(self, states: str, layer: Layer) -> str:
        graph = self._graph
        kind, attributes = _ACTIVATIONS[self._shape.activation]
        up = self._products.add(states, layer.up)
        if layer.is_gated:
            active, factor = graph.add_many("Split", 2, up, axis=1, num_outputs=2)
            return graph.add("Mul", graph.fused(kind, active, **attributes), factor)
        return graph.fused(kind, up, **attributes)

    def _added(self, states: str, linear: Linear, residual: str) -> str:
        return self._graph.add("Add", self._products.add(states, linear), residual)

    def _normed(self, states: str, norm: Norm | None) -> str:
        if norm is None:
            return states
        kind = "SimplifiedLayerNormalization" if norm.is_rms else "LayerNormalization"
        weights = [self._graph.weight(each) for each in (norm.weight, norm.bias) if each is not None]
        return self._graph.add(kind, states, *weights, axis=-1, epsilon=norm.epsilon)

    def _rotations(self, rope: Rope) -> tuple[str, str]:
        if rope not in self._caches:
            # Nobody has a position beyond the model's own, but rows may be wider, and the operator asks that.
            places = max(self._shape.positions, WIDEST_SHARED)
            turns = np.array(rope.frequencies, np.float32)
            angles = np.outer(np.arange(places, dtype=np.float32), turns)
            magnitude = np.float32(rope.magnitude)
            cosines, sines = np.cos(angles) * magnitude, np.sin(angles) * magnitude
            self._caches[rope] = self._graph.weight(cosines), self._graph.weight(sines)
        return self._caches[rope]

    def _seen(self, window: int | None) -> str:
        """What is added to the scores of attention: nothing within a text, nearly -∞ beyond."""
        if window not in self._biases:
            graph = self._graph
            seen = graph.add("Equal", *self._across(self._texts))
            if self._encoder.is_causal:
                earlier = graph.add("GreaterOrEqual", *self._across(self._positions))
                seen = graph.add("And", seen, earlier)
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
        graph, exact = self._graph, Products(self._graph)
        if head.dense is not None:
            dense = exact.add(pooled, head.dense)
            active = graph.add("Tanh", dense) if head.activation == "tanh" else graph.fused("Gelu", dense)
            pooled = self._normed(active, head.norm)
        return exact.add(pooled, head.output)
