"""Weights of a given shape made of random numbers: speed does not depend on what they say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from python_backend.engine.models.decoder import Activation, DecoderShape, LayerWeights, Rope, Weights


def llama_shape(
    layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int, vocabulary: int
) -> DecoderShape:
    head_dim = hidden // heads
    frequencies = (1e5 ** -(np.arange(0, head_dim, 2) / head_dim)).astype(np.float32)
    return DecoderShape(
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=vocabulary,
        max_positions=8192,
        norm_epsilon=1e-5,
        activation=Activation.SILU,
        query_scale=head_dim**-0.5,
        ropes=(Rope(frequencies),),
        rope_of_layer=(0,) * layers,
        windows=(None,) * layers,
    )


SMOLLM2_135M = llama_shape(30, 576, 1536, 9, 3, 49152)


@dataclass(frozen=True)
class RandomWeights:
    """A `DecoderWeights` with tied embeddings; asked twice for a layer, it gives the same numbers."""

    shape: DecoderShape

    @property
    def quantized_bytes(self) -> int | None:
        return None

    def _matrix(self, seed: int, rows: int, columns: int) -> Weights:
        dice = np.random.default_rng(seed)
        return dice.standard_normal((rows, columns), np.float32) * np.float32(columns**-0.5)

    def embeddings(self) -> Weights:
        return self._matrix(1, self.shape.vocabulary, self.shape.hidden)

    def final_norm(self) -> Weights:
        return np.ones(self.shape.hidden, np.float32)

    def head(self) -> Weights | None:
        return None

    def layer(self, index: int) -> LayerWeights:
        shape = self.shape
        width = shape.heads * shape.head_dim
        rows = width + 2 * shape.kv_heads * shape.head_dim
        return LayerWeights(
            attention_norm=np.ones(shape.hidden, np.float32),
            qkv=self._matrix(10 * index + 2, rows, shape.hidden),
            attention_out=self._matrix(10 * index + 3, shape.hidden, width),
            mlp_norm=np.ones(shape.hidden, np.float32),
            gate_up=self._matrix(10 * index + 4, 2 * shape.intermediate, shape.hidden),
            down=self._matrix(10 * index + 5, shape.hidden, shape.intermediate),
        )
