"""A native model and its blocks without an engine, so that a test says itself which rows share a step."""

from __future__ import annotations

from collections.abc import Sequence as Row
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from python_backend.engine.kv.blocks import BlockPool
from python_backend.engine.models.decoder import (
    DecoderShape,
    DecoderWeights,
    LayerWeights,
    Matrix,
    Weights,
    dense,
)
from python_backend.engine.native.microkernel import Format
from python_backend.engine.native.model import NativeModel
from python_backend.engine.native.weight_layouts import pack
from python_backend.engine.native.weights import head_format, map_packed, write_packed
from python_backend.engine.request import GenerationRequest
from python_backend.engine.scheduling.plan import Chunk
from python_backend.engine.sequence import Sequence
from tests.engine.native.unpacked import unpack

Floats = NDArray[np.float32]


class RoundedWeights:
    """Weights as a format keeps them, in fp32: what is left to a kernel to get wrong is its arithmetic."""

    def __init__(self, weights: DecoderWeights, kind: Format) -> None:
        self._weights = weights
        self._kind = kind

    @property
    def shape(self) -> DecoderShape:
        return self._weights.shape

    @property
    def quantized_bytes(self) -> int | None:
        return None

    def layer(self, index: int) -> LayerWeights:
        layer, experts = self._weights.layer(index), None
        if layer.experts is not None:
            gate_up = np.stack([self._rounded(matrix) for matrix in dense(layer.experts.gate_up)])
            down = np.stack([self._rounded(matrix) for matrix in dense(layer.experts.down)])
            experts = replace(layer.experts, gate_up=gate_up, down=down)
        return replace(
            layer,
            qkv=self._rounded(layer.qkv),
            attention_out=self._rounded(layer.attention_out),
            gate_up=None if layer.gate_up is None else self._rounded(layer.gate_up),
            down=None if layer.down is None else self._rounded(layer.down),
            experts=experts,
        )

    def embeddings(self) -> Weights:
        return self._rounded(self._weights.embeddings(), head_format(self._kind))

    def head(self) -> Weights | None:
        head = self._weights.head()
        return None if head is None else self._rounded(head, head_format(self._kind))

    def final_norm(self) -> Weights:
        return self._weights.final_norm()

    def _rounded(self, matrix: Matrix, kind: Format | None = None) -> Weights:
        kind = self._kind if kind is None else kind
        outputs, inputs = matrix.shape
        return unpack(pack(matrix, kind), kind, outputs, inputs).matrix[:outputs, :inputs]


class Runner:
    """Packs the weights into `directory` if they are not there."""

    def __init__(
        self,
        weights: DecoderWeights,
        kind: Format,
        directory: Path,
        threads: int = 1,
        tokens_per_block: int = 16,
    ) -> None:
        if not directory.exists():
            write_packed(weights, kind, directory)
        self._pool = BlockPool(1024 // tokens_per_block, tokens_per_block)
        self._model = NativeModel(
            weights.shape,
            map_packed(directory, weights.shape, kind),
            kind,
            self._pool.total_blocks,
            tokens_per_block,
            self._pool.capacity_tokens,
            threads,
        )
        self._keys = 0

    def sequence(self, token_ids: Row[int]) -> Sequence:
        self._keys += 1
        sequence = Sequence(self._keys, self._keys, GenerationRequest(list(token_ids), 1), 1)
        assert self._pool.grow(sequence.table, len(token_ids))
        return sequence

    def step(self, *work: tuple[Sequence, int], wanted: Row[int] | None = None) -> Floats:
        """Computes so many more tokens of each; the logits of the wanted rows, or of all."""
        chunks = [Chunk(sequence, sequence.computed_tokens, count) for sequence, count in work]
        rows = range(sum(chunk.count for chunk in chunks))
        logits = self._model.forward(chunks, [], rows if wanted is None else wanted)
        for sequence, count in work:
            sequence.computed_tokens += count
        return logits

    def all_logits(self, token_ids: Row[int], chunk_tokens: int | None = None) -> Floats:
        """(tokens, vocabulary): of a sequence that is alone."""
        sequence = self.sequence(token_ids)
        parts = []
        while left := sequence.pending_tokens:
            parts.append(self.step((sequence, min(left, chunk_tokens or left))))
        self.forget(sequence)
        return np.concatenate(parts)

    def forget(self, sequence: Sequence) -> None:
        self._pool.release(sequence.table)

    def close(self) -> None:
        self._model.close()


def assert_same_bits(found: Floats, expected: Floats) -> None:
    """Also for what is not a number, which is equal to nothing."""
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()
