"""The packed model with its cache and its threads: chunks in, logits out."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence as Row
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from numba.core.dispatcher import Dispatcher
from numpy.typing import NDArray

from python_backend.engine.kv.layout import one_table
from python_backend.engine.kv.size import kv_bytes_per_number
from python_backend.engine.native.adapters import NativeAdapters
from python_backend.engine.native.addresses import address_of
from python_backend.engine.native.amx import NEVER, WIDE_ROWS
from python_backend.engine.native.arithmetic import ACTIVATIONS
from python_backend.engine.native.combining import LANES
from python_backend.engine.native.layer_attention import layer_attention
from python_backend.engine.native.microkernel import CHANNELS, GROUP, Format
from python_backend.engine.native.products import buffer_floats
from python_backend.engine.native.step import counters_per_layer, run_step
from python_backend.engine.native.tables import (
    Adapted,
    Arrays,
    Batch,
    Cache,
    Dimensions,
    ExpertScratch,
    Inputs,
    Scratch,
    Told,
)
from python_backend.engine.native.threads import FIRST_FREE, Team, lead
from python_backend.engine.native.tiles import WIDE, can_be_wide
from python_backend.engine.native.weight_layouts import whole
from python_backend.engine.native.weights import head_format

if TYPE_CHECKING:
    from python_backend.engine.kv.layout import KvLayout
    from python_backend.engine.kv.table import BlockCopy
    from python_backend.engine.models.decoder import DecoderShape
    from python_backend.engine.scheduling.plan import Chunk

_log = logging.getLogger("inflight.engine")
# Rows of a prompt that attend together: each block's keys and values are then read once for all of them.
_ROWS_TOGETHER = 4
# Of so many rows it is measured whether AMX or `smmla` multiplies them in less time.
_TRIED_ROWS = (WIDE_ROWS, 2 * WIDE_ROWS, 4 * WIDE_ROWS)
# What is compiled, each by itself.
PARTS: tuple[Dispatcher, ...] = (layer_attention, run_step, lead)


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
        max_adapters: int = 0,
        max_adapter_rank: int = 0,
        layout: KvLayout | None = None,
    ) -> None:
        self._shape = shape
        self._arrays = arrays
        self._team = Team(threads)
        layout = layout or one_table(shape.layers)
        self._tables = layout.table_count
        blocks = (layout.block_layers, total_blocks, shape.kv_heads)
        size = kv_bytes_per_number(kind is Format.FP32)
        self._cache = Cache(
            keys=np.zeros((*blocks, shape.head_dim, whole(tokens_per_block, LANES) * size), np.uint8),
            values=np.zeros((*blocks, tokens_per_block, whole(shape.head_dim, LANES) * size), np.uint8),
            place_of_layer=np.array(layout.slots, np.int64),
            table_of_layer=np.array(layout.tables, np.int64),
        )
        self._dimensions = _dimensions(shape, kind, tokens_per_block)
        together = _ROWS_TOGETHER * shape.heads // shape.kv_heads
        self._scores = _floats(threads, together, max_sequence_tokens + 2 * max(tokens_per_block, LANES))
        experts = shape.experts.total if shape.experts else 0
        self.adapters = NativeAdapters(shape, kind, max_adapters, max_adapter_rank)
        self._nothing = _floats(CHANNELS)
        self._counters = np.zeros(FIRST_FREE + 1 + counters_per_layer(experts) * shape.layers, np.int64)
        self._scratch = self._scratch_for(64)
        self._experts = _expert_scratch(64, shape)
        self._adapter_rows = self.adapters.rows(0)

    def forward(
        self, chunks: Row[Chunk], copies: Row[BlockCopy], wanted_rows: Row[int]
    ) -> NDArray[np.float32]:
        for copy in copies:
            for part in (self._cache.keys, self._cache.values):
                part[:, copy.target] = part[:, copy.source]
        batch = self._batch(chunks, wanted_rows)
        rows = max(len(batch.token_ids), len(batch.wanted))
        if rows > len(self._scratch.hidden):
            self._scratch = self._scratch_for(rows)
            self._experts = _expert_scratch(rows, self._shape)
        return self._run(batch, self._adapters_of(chunks))

    def compile(self, parts: Row[Dispatcher] = PARTS) -> None:
        """Loads compiled parts of the step, or compiles them; `signatures` are all they depend on."""
        signatures = self.signatures
        for part in parts:
            part.compile(signatures[part])

    @property
    def signatures(self) -> dict[Dispatcher, tuple[Any, ...]]:
        """The types of what each part is told."""
        told = self._told(self._same_rows(1), [], attention=0)
        d, w, batch, x, _, adapted, cache, _, counters = told[2:]
        of_layer = (d, w.attention, False, 0, batch, x, adapted, cache, 0, told.threads, counters, 0)
        return {
            layer_attention: tuple(map(numba.typeof, of_layer)),
            run_step: tuple(map(numba.typeof, (0, *told))),
            lead: self._team.signature(told),
        }

    @cached_property
    def _attention(self) -> int:
        return address_of(layer_attention, self.signatures[layer_attention])

    @cached_property
    def _step(self) -> int:
        return address_of(run_step, self.signatures[run_step])

    def warm_up(self) -> None:
        """So that the first request does not wait for compiled code to be found and loaded.

        Sixteen rows at a time are multiplied from the number of rows on where that takes less time here.
        """
        self._run(self._same_rows(1), [])
        if self._dimensions.format != Format.FP32 and can_be_wide():
            self._dimensions = self._dimensions._replace(wide_from=self._rows_where_wide_pays())

    def _rows_where_wide_pays(self) -> int:
        for rows in _TRIED_ROWS:
            usual_s, usual = self._timed(rows, int(NEVER))
            wide_s, wide = self._timed(rows, rows)
            if not np.array_equal(usual.view(np.uint32), wide.view(np.uint32)):
                _log.warning(
                    "%s gives different results from the other kernels on this machine and is not used", WIDE
                )
                break
            if wide_s < usual_s:
                _log.info("%s multiplies %d rows and more", WIDE, rows)
                return rows
        return int(NEVER)

    def _timed(self, rows: int, wide_from: int) -> tuple[float, NDArray[np.float32]]:
        """The shorter of two steps."""
        self._dimensions = self._dimensions._replace(wide_from=wide_from)
        took_s = []
        for _ in range(2):
            began_s = time.perf_counter()
            logits = self._run(self._same_rows(rows), [])
            took_s.append(time.perf_counter() - began_s)
        return min(took_s), logits

    def close(self) -> None:
        self._team.close()

    def _adapters_of(self, chunks: Row[Chunk]) -> list[int]:
        """By rows; empty where none has one, so that nobody else pays for asking."""
        if all(chunk.sequence.adapter is None for chunk in chunks):
            return []
        places = [(-1 if (worn := chunk.sequence.adapter) is None else worn.place) for chunk in chunks]
        return [place for place, chunk in zip(places, chunks, strict=True) for _ in range(chunk.count)]

    def _run(self, batch: Batch, adapters: list[int]) -> NDArray[np.float32]:
        self._counters[FIRST_FREE:] = 0
        told = self._told(batch, adapters, self._attention)
        self._team.run(self._step, told)
        return told.logits

    def _told(self, batch: Batch, adapters: list[int], attention: int) -> Told:
        return Told(
            self._team.threads,
            attention,
            self._dimensions,
            self._arrays,
            batch,
            self._scratch,
            self._experts,
            self._adapted(adapters),
            self._cache,
            np.empty((len(batch.wanted), self._shape.vocabulary), np.float32),
            self._counters,
        )

    def _adapted(self, adapters: list[int]) -> Adapted | None:
        if not self.adapters.places:
            return None
        if len(adapters) > len(self._adapter_rows):
            self._adapter_rows = self.adapters.rows(whole(len(adapters), 64))
        of_row = np.array(adapters, np.int64)
        return Adapted(self.adapters.tables, of_row, self._adapter_rows, self._nothing)

    def _batch(self, chunks: Row[Chunk], wanted_rows: Row[int]) -> Batch:
        token_ids: list[int] = []
        positions: list[int] = []
        tables_at: list[list[int]] = [[] for _ in range(self._tables)]
        tables: list[int] = []
        first_rows: list[int] = []
        row_counts: list[int] = []
        for chunk in chunks:
            for first in range(0, chunk.count, _ROWS_TOGETHER):
                first_rows.append(len(token_ids) + first)
                row_counts.append(min(_ROWS_TOGETHER, chunk.count - first))
            token_ids += chunk.token_ids
            positions += range(chunk.start, chunk.end)
            for at, (blocks, first_stretch) in zip(tables_at, chunk.sequence.table.rows(), strict=True):
                at += [len(tables) - first_stretch] * chunk.count
                tables += blocks
        return self._batch_of(token_ids, positions, tables_at, tables, wanted_rows, first_rows, row_counts)

    def _same_rows(self, count: int) -> Batch:
        """The first token of so many sequences, all in the first place of the first block."""
        nought, each = [0] * count, list(range(count))
        return self._batch_of(nought, nought, [nought] * self._tables, [0], each, each, [1] * count)

    def _batch_of(
        self,
        token_ids: list[int],
        positions: list[int],
        tables_at: list[list[int]],
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
            wide=_floats(self._team.threads, max(part[0, 0, 0].size for part in self._cache[:2])),
            tiles=_floats(self._team.threads, buffer_floats(_widest_inputs(shape))),
        )


def _widest_inputs(shape: DecoderShape) -> int:
    experts = shape.experts.intermediate if shape.experts else 0
    return max(shape.hidden, shape.heads * shape.head_dim, shape.intermediate, experts)


def _inputs(rows: int, width: int) -> Inputs:
    padded = whole(width, GROUP)
    return Inputs(
        floats=_floats(rows, padded),
        levels=np.zeros((rows, padded), np.int8),
        worths=_floats(rows, padded // GROUP),
        totals=_floats(rows, padded // GROUP),
    )


def _expert_scratch(rows: int, shape: DecoderShape) -> ExpertScratch | None:
    if (experts := shape.experts) is None:
        return None
    rows = whole(rows, 64)
    count, each = experts.total, experts.passes
    return ExpertScratch(
        scores=_floats(rows, experts.scores),
        chosen=np.zeros((rows, each), np.int64),
        shares=_floats(rows, each),
        places=np.zeros((rows, each), np.int64),
        first_places=np.zeros(count + 1, np.int64),
        filled=np.zeros(count, np.int64),
        gathered=_inputs(rows * each, shape.hidden),
        inner=_inputs(rows * each, experts.intermediate),
        out=_floats(rows * each, shape.hidden),
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
        kv_bytes=kv_bytes_per_number(kind is Format.FP32),
        format=int(kind),
        head_format=int(head_format(kind)),
        wide_from=int(NEVER),
        activation=ACTIVATIONS.index(shape.activation),
        activation_limit=np.float32(shape.activation_limit),
        epsilon=np.float32(shape.norm_epsilon),
        query_scale=np.float32(shape.query_scale),
        embedding_scale=np.float32(shape.embedding_scale),
        attention_softcap=np.float32(shape.attention_softcap or 0),
        logits_softcap=np.float32(shape.logits_softcap or 0),
        experts_per_row=shape.experts.passes if shape.experts else 0,
        experts_renormalize=bool(shape.experts and shape.experts.renormalizes),
        experts_shared=shape.experts.shared if shape.experts else 0,
    )
