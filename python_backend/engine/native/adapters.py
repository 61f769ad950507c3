"""Adapters beside the packed weights: where they lie, and what a row of one adds to its products.

A row that has an adapter goes through two thin products for each of a layer's: it is shrunk to the adapter's
rank by whoever prepared the row, and what was shrunk is added to the product's result, again row by row. So a
row is computed by itself here too, in one fixed order, whatever adapters share the batch.

Rows of different adapters share none of their weights, so what counts is how many bytes these are: beside
weights of bytes or less an adapter is kept in bytes too.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from python_backend.engine.adapters.adapter import Adapter, Part, part_sizes
from python_backend.engine.models.decoder import DecoderShape, Weights
from python_backend.engine.native.arithmetic import NOUGHT, ONE, OPTIONS
from python_backend.engine.native.combining import LANES, floats, make_combine, signed_bytes
from python_backend.engine.native.microkernel import CHANNELS, GROUP, Format
from python_backend.engine.native.tables import AdapterTables
from python_backend.engine.native.tiles import FP32, TILE_BYTES, TILE_SCALES, times_tile
from python_backend.engine.native.weight_layouts import pack, whole
from python_backend.wire.errors import ErrorKind, InflightError

_expand_floats, _expand_bytes = (make_combine(1, True, lanes) for lanes in (floats, signed_bytes))
QUERY, ATTENTION_OUT, GATE, UP, DOWN = (
    np.int64(part) for part in (Part.QUERY, Part.ATTENTION_OUT, Part.GATE, Part.UP, Part.DOWN)
)
ONE_PART, TWO_PARTS, THREE_PARTS = (np.int64(count) for count in (1, 2, 3))
_REST = np.int64(3)  # of a row on its way: room for part of a vector
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


class NativeAdapters:
    """Places for adapters in one mapping of memory, which takes none until something is put there."""

    def __init__(self, shape: DecoderShape, model_kind: Format, places: int, max_rank: int) -> None:
        self.places = places
        self.max_rank = max_rank
        self._kind = Format.FP32 if model_kind is Format.FP32 else Format.INT8
        starts, layer_bytes = _layout(shape, self._kind, max_rank)
        self._place_bytes = whole(shape.layers * layer_bytes, mmap.PAGESIZE)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        try:
            size = max(1, places) * self._place_bytes
            self._memory = mmap.mmap(-1, size or mmap.PAGESIZE, flags=flags)
        except OSError as error:
            raise InflightError(
                ErrorKind.ENGINE_FAILED,
                f"{places} adapters of rank {max_rank} take up to {places * self._place_bytes / 1e6:,.0f} "
                "MB, which this machine cannot allocate (inflight_max_adapters, inflight_max_adapter_rank)",
                "inflight_max_adapters",
            ) from error
        pool = np.frombuffer(self._memory, np.uint8).reshape(max(1, places), -1)
        ranks = np.zeros((max(1, places), shape.layers, len(Part)), np.int64)
        widths = np.array([outputs for _, outputs in part_sizes(shape).values()], np.int64)
        worths = np.zeros((*ranks.shape, max_rank), np.float32)
        self.tables = AdapterTables(pool, ranks, starts, widths, worths, layer_bytes, int(self._kind))

    def put(self, place: int, adapter: Adapter) -> None:
        self.clear(place)
        tables = self.tables
        for index, layer in enumerate(adapter.layers):
            for part, pair in layer.items():
                shrunk = pack(pair.shrink, self._kind)
                worths, blocks = _blocks(pair.expand, self._kind)
                arrays: tuple[NDArray[Any], ...] = (shrunk.weights, shrunk.scales, blocks)
                for start, array in zip(tables.starts[part].tolist(), arrays, strict=True):
                    at = index * tables.layer_bytes + start
                    tables.pool[place, at : at + array.nbytes] = array.reshape(-1).view(np.uint8)
                tables.worths[place, index, part, : pair.rank] = worths
                tables.ranks[place, index, part] = pair.rank

    def clear(self, place: int) -> None:
        if self.tables.ranks[place].any():
            self.tables.ranks[place] = 0
            self._memory.madvise(mmap.MADV_DONTNEED, place * self._place_bytes, self._place_bytes)

    def rows(self, count: int) -> Any:
        """Room for so many rows on their way through adapters."""
        return np.zeros((count, 4, whole(self.max_rank, LANES)), np.float32)


def _layout(shape: DecoderShape, kind: Format, max_rank: int) -> tuple[Any, int]:
    """For each part where its arrays begin in a layer; and a layer's bytes."""
    ranks, size = whole(max_rank, CHANNELS), 4 if kind is Format.FP32 else 1
    starts, at = [], 0
    for inputs, outputs in part_sizes(shape).values():
        groups = ranks // CHANNELS * whole(inputs, GROUP) // GROUP
        sizes = (
            groups * kind.bytes_per_group,
            groups * kind.scales_per_group * 2,
            max_rank * whole(outputs, GROUP) * size,
        )
        starts.append([at + sum(sizes[:number]) for number in range(len(sizes))])
        at = whole(at + sum(sizes), 64)
    return np.array(starts, np.int64), at


def _blocks(expand: Weights, kind: Format) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """What each of its rows is worth, and these: 16 columns of all, then the next 16; in whole groups."""
    outputs, rank = expand.shape
    rows = np.zeros((rank, whole(outputs, GROUP)), np.float32)
    rows[:, :outputs] = expand.T
    worths, levels = np.ones(rank, np.float32), rows
    if kind is not Format.FP32:
        worths = np.abs(rows).max(axis=1) / np.float32(127)  # not a number where one of them is none
        is_worth = np.isfinite(worths) & (worths > 0)
        steps = np.where(is_worth, worths, 1)[:, None]
        levels = np.rint(np.where(is_worth[:, None], rows, 0) / steps).astype(np.int8)
    return worths, np.ascontiguousarray(levels.reshape(rank, -1, LANES).transpose(1, 0, 2))


@njit(**OPTIONS)
def shrink(adapted, layer, first_part, parts, inputs, row):
    """The row times the first matrices of neighbouring parts, which all have it as input."""
    if adapted is None:
        return
    if adapted.of_row.shape[0] == 0 or adapted.of_row[row] < 0:
        return
    tables, place = adapted.tables, adapted.of_row[row]
    kind, groups = tables.format, inputs.floats.shape[1] // GROUP
    row_at = np.int64(inputs.levels.ctypes.data + row * inputs.levels.strides[0])
    if kind == FP32:
        row_at = np.int64(inputs.floats.ctypes.data + row * inputs.floats.strides[0])
    sizes = np.int64(inputs.worths.ctypes.data + row * inputs.worths.strides[0])
    totals = np.int64(inputs.totals.ctypes.data + row * inputs.totals.strides[0])
    nothing = np.int64(adapted.nothing.ctypes.data)
    for number in range(parts):
        part = first_part + number
        rank = tables.ranks[place, layer, part]
        begin = np.int64(tables.pool[place].ctypes.data + layer * tables.layer_bytes)
        weights, scales = begin + tables.starts[part, 0], begin + tables.starts[part, 1]
        out = np.int64(adapted.rows[row, number].ctypes.data)
        for tile in range((rank + CHANNELS - 1) // CHANNELS):
            w = weights + tile * groups * TILE_BYTES[kind]
            s = scales + tile * groups * TILE_SCALES[kind] * 2
            at = out + tile * CHANNELS * 4
            times_tile(
                kind, ONE, w, s, row_at, NOUGHT, sizes, totals, NOUGHT, groups, nothing, NOUGHT, at, NOUGHT
            )
        for i in range(rank):
            adapted.rows[row, number, i] *= tables.worths[place, layer, part, i]


@njit(**OPTIONS)
def expand(adapted, layer, part, number, row, first, count, out, at):
    """out[at:] += columns `first` to `first + count` of what the `number`th shrunk row gives for the part."""
    tables, place = adapted.tables, adapted.of_row[row]
    rank = tables.ranks[place, layer, part]
    if rank == 0:
        return
    size = 4 if tables.format == FP32 else 1
    step = np.int64(LANES * size)
    begin = np.int64(tables.pool[place].ctypes.data + layer * tables.layer_bytes)
    blocks_at, rest = begin + tables.starts[part, 2], adapted.rows[row, _REST]
    shares_at = np.int64(adapted.rows[row, number].ctypes.data)
    for lane in range(0, count, LANES):
        is_whole = lane + LANES <= count
        target = np.int64(out.ctypes.data + (at + lane) * 4)
        if not is_whole:
            for i in range(LANES):
                rest[i] = np.float32(0.0)
            target = np.int64(rest.ctypes.data)
        source = blocks_at + (first + lane) // LANES * rank * step
        if tables.format == FP32:
            _expand_floats(shares_at, NOUGHT, source, step, rank, target, NOUGHT)
        else:
            _expand_bytes(shares_at, NOUGHT, source, step, rank, target, NOUGHT)
        if not is_whole:
            for i in range(count - lane):
                out[at + lane + i] += rest[i]


@njit(**OPTIONS)
def expand_row(adapted, layer, first_part, parts, row, out):
    """Adds to a whole row what neighbouring parts give for it, one after the other."""
    if adapted is None:
        return
    if adapted.of_row.shape[0] == 0 or adapted.of_row[row] < 0:
        return
    at = np.int64(0)
    for number in range(parts):
        width = adapted.tables.widths[first_part + number]
        expand(adapted, layer, first_part + number, number, row, np.int64(0), width, out[row], at)
        at += width


@njit(**OPTIONS)
def expand_gates_and_ups(adapted, layer, row, group, buffer, at):
    """The same for a group of gates, and the ups behind them, before they meet."""
    if adapted is None:
        return
    if adapted.of_row.shape[0] == 0 or adapted.of_row[row] < 0:
        return
    first, count = np.int64(group * GROUP), np.int64(GROUP)
    expand(adapted, layer, GATE, np.int64(0), row, first, count, buffer, np.int64(at))
    expand(adapted, layer, UP, np.int64(1), row, first, count, buffer, np.int64(at + GROUP))
