"""The packed model with its cache and its threads: chunks in, logits out."""

from __future__ import annotations

from collections.abc import Sequence as Row
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from python_backend.engine.native.microkernel import CHANNELS, GROUP, LANES, ROWS, Format
from python_backend.engine.native.step import counters_per_layer, run_step
from python_backend.engine.native.tables import (
    Arrays,
    Batch,
    Cache,
    Dimensions,
    ExpertScratch,
    Inputs,
    Scratch,
)
from python_backend.engine.native.threads import Team
from python_backend.engine.native.weight_layouts import whole
from python_backend.engine.native.weights import head_format

if TYPE_CHECKING:
    from python_backend.engine.kv.blocks import BlockCopy
    from python_backend.engine.models.decoder import DecoderShape
    from python_backend.engine.scheduling.plan import Chunk

# Rows of a prompt that attend together: each block's keys and values are then read once for all of them.
_ROWS_TOGETHER = 4


def _floats(*shape: int) -> NDArray[np.float32]:
    return np.zeros(shape, np.float32)


class NativeModel:
    """A step model of packed weights; memory for `max_rows` rows is taken as rows are first used."""

    def __init__(
        self,
        shape: DecoderShape,
        arrays: Arrays,
        kind: Format,
        total_blocks: int,
        tokens_per_block: int,
        max_sequence_tokens: int,
        threads: int,
    ) -> None:
        self._shape = shape
        self._arrays = arrays
        self._team = Team(threads)
        blocks = (shape.layers, total_blocks, shape.kv_heads)
        self._cache = Cache(
            keys=_floats(*blocks, shape.head_dim, whole(tokens_per_block, LANES)),
            values=_floats(*blocks, tokens_per_block, whole(shape.head_dim, LANES)),
        )
        self._dimensions = _dimensions(shape, kind, tokens_per_block)
        together = _ROWS_TOGETHER * shape.heads // shape.kv_heads
        self._scores = _floats(threads, together, max_sequence_tokens + 2 * max(tokens_per_block, LANES))
        experts = shape.experts.count if shape.experts else 0
        self._counters = np.zeros(2 + counters_per_layer(experts) * shape.layers, np.int64)
        self._scratch = self._scratch_for(64)

    def forward(
        self, chunks: Row[Chunk], copies: Row[BlockCopy], wanted_rows: Row[int]
    ) -> NDArray[np.float32]:
        for copy in copies:
            for part in self._cache:
                part[:, copy.target] = part[:, copy.source]
        batch = self._batch(chunks, wanted_rows)
        rows = max(len(batch.token_ids), len(batch.wanted))
        if rows > len(self._scratch.hidden):
            self._scratch = self._scratch_for(rows)
        return self._run(batch)

    def warm_up(self) -> None:
        """Loads the compiled step, or compiles it, so that the first request does not wait for that."""
        self._run(self._batch_of([0], [0], [0], [0], [0], [0], [1]))

    def close(self) -> None:
        self._team.close()

    def _run(self, batch: Batch) -> NDArray[np.float32]:
        logits = np.empty((len(batch.wanted), self._shape.vocabulary), np.float32)
        self._counters[1:] = 0
        self._team.run(
            run_step,
            self._team.threads,
            self._dimensions,
            self._arrays,
            batch,
            self._scratch,
            self._cache,
            logits,
            self._counters,
        )
        return logits

    def _batch(self, chunks: Row[Chunk], wanted_rows: Row[int]) -> Batch:
        token_ids: list[int] = []
        positions: list[int] = []
        tables_at: list[int] = []
        tables: list[int] = []
        first_rows: list[int] = []
        row_counts: list[int] = []
        for chunk in chunks:
            for first in range(0, chunk.count, _ROWS_TOGETHER):
                first_rows.append(len(token_ids) + first)
                row_counts.append(min(_ROWS_TOGETHER, chunk.count - first))
            token_ids += chunk.token_ids
            positions += range(chunk.start, chunk.end)
            tables_at += [len(tables)] * chunk.count
            tables += chunk.sequence.table.blocks
        return self._batch_of(token_ids, positions, tables_at, tables, wanted_rows, first_rows, row_counts)

    def _batch_of(
        self,
        token_ids: list[int],
        positions: list[int],
        tables_at: list[int],
        tables: list[int],
        wanted_rows: Row[int],
        first_rows: list[int],
        row_counts: list[int],
    ) -> Batch:
        where = np.array(positions, np.int64)
        cosines = _floats(len(self._shape.ropes), len(where), self._dimensions.rotary)
        sines = np.zeros_like(cosines)
        for index, rope in enumerate(self._shape.ropes):
            angles = where[:, None].astype(np.float32) * rope.inverse_frequencies
            cosines[index] = np.cos(angles) * rope.magnitude
            sines[index] = np.sin(angles) * rope.magnitude
        return Batch(
            np.array(token_ids, np.int64),
            where,
            np.array(tables_at, np.int64),
            np.array(tables, np.int64),
            cosines,
            sines,
            np.array(wanted_rows, np.int64),
            np.array(first_rows, np.int64),
            np.array(row_counts, np.int64),
        )

    def _scratch_for(self, rows: int) -> Scratch:
        shape = self._shape
        rows = whole(rows, 64)
        return Scratch(
            hidden=_floats(rows, shape.hidden),
            normed=_inputs(rows, shape.hidden),
            qkv=_floats(rows, (shape.heads + 2 * shape.kv_heads) * shape.head_dim),
            attended=_inputs(rows, shape.heads * shape.head_dim),
            inner=_inputs(rows, shape.intermediate),
            delta=_floats(rows, shape.hidden),
            queries=_floats(self._team.threads, self._scores.shape[1], shape.head_dim),
            scores=self._scores,
            sums=_floats(self._team.threads, self._scores.shape[1], whole(shape.head_dim, LANES)),
            experts=_expert_scratch(rows, shape),
            tiles=_floats(self._team.threads, CHANNELS + 2 * ROWS * GROUP),
        )


def _inputs(rows: int, width: int) -> Inputs:
    padded = whole(width, GROUP)
    return Inputs(
        floats=_floats(rows, padded),
        levels=np.zeros((rows, padded), np.int8),
        worths=_floats(rows, padded // GROUP),
        totals=_floats(rows, padded // GROUP),
    )


def _expert_scratch(rows: int, shape: DecoderShape) -> ExpertScratch:
    count, each, inner = 0, 0, 0
    if shape.experts is not None:
        count, each, inner = shape.experts.count, shape.experts.per_token, shape.experts.intermediate
    hidden = shape.hidden if each else 0
    return ExpertScratch(
        scores=_floats(rows, count),
        chosen=np.zeros((rows, each), np.int64),
        shares=_floats(rows, each),
        places=np.zeros((rows, each), np.int64),
        first_places=np.zeros(count + 1, np.int64),
        filled=np.zeros(count, np.int64),
        gathered=_inputs(rows * each, hidden),
        inner=_inputs(rows * each, inner),
        out=_floats(rows * each, hidden),
    )


def _dimensions(shape: DecoderShape, kind: Format, slots: int) -> Dimensions:
    return Dimensions(
        hidden=shape.hidden,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        rotary=len(shape.ropes[0].inverse_frequencies),
        vocabulary=shape.vocabulary,
        slots=slots,
        format=int(kind),
        head_format=int(head_format(kind)),
        is_gelu=shape.activation == "gelu_tanh",
        epsilon=np.float32(shape.norm_epsilon),
        query_scale=np.float32(shape.query_scale),
        embedding_scale=np.float32(shape.embedding_scale),
        attention_softcap=np.float32(shape.attention_softcap or 0),
        logits_softcap=np.float32(shape.logits_softcap or 0),
        experts_per_row=shape.experts.per_token if shape.experts else 0,
        experts_renormalize=bool(shape.experts and shape.experts.renormalizes),
    )
