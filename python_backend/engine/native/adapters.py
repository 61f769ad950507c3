"""Adapters beside the packed weights: where they lie, and what a row of one adds to its products.

A row that has an adapter goes through two thin products for each of a layer's: it is shrunk to the adapter's
rank by whoever prepared the row, and what was shrunk is added to the product's result, again row by row. So a
row is computed by itself here too, in one fixed order, whatever adapters share the batch.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numba import njit

from python_backend.engine.adapters.adapter import Adapter, Part, part_sizes
from python_backend.engine.models.decoder import DecoderShape
from python_backend.engine.native.arithmetic import OPTIONS
from python_backend.engine.native.microkernel import CHANNELS, GROUP, LANES, Format, make_combine, make_tile
from python_backend.engine.native.tables import AdapterTables
from python_backend.engine.native.weight_layouts import pack, whole
from python_backend.wire.errors import ErrorKind, InflightError

_shrink_one = make_tile(Format.FP32, 1)
_expand_one = make_combine(1, adds=True)
QUERY, ATTENTION_OUT, GATE, UP, DOWN = (
    np.int64(part) for part in (Part.QUERY, Part.ATTENTION_OUT, Part.GATE, Part.UP, Part.DOWN)
)
ONE_PART, TWO_PARTS, THREE_PARTS = (np.int64(count) for count in (1, 2, 3))
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


class NativeAdapters:
    """Places for adapters in one mapping of memory, which takes none until something is put there."""

    def __init__(self, shape: DecoderShape, places: int, max_rank: int) -> None:
        self.places = places
        self.max_rank = max_rank
        self._sizes = part_sizes(shape)
        starts, floats = _layout(shape, max_rank)
        self._layer_floats = floats
        self._place_bytes = whole(shape.layers * floats * 4, mmap.PAGESIZE)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        try:
            size = max(1, places) * self._place_bytes
            self._memory = mmap.mmap(-1, size or mmap.PAGESIZE, flags=flags)
        except OSError as error:
            raise InflightError(
                ErrorKind.ENGINE_FAILED,
                f"{places} adapters of rank {max_rank} take up to {places * self._place_bytes / 1e6:,.0f} "
                "MB, which this machine does not give (inflight_max_adapters, inflight_max_adapter_rank)",
                "inflight_max_adapters",
            ) from error
        pool = np.frombuffer(self._memory, np.float32).reshape(max(1, places), -1)
        ranks = np.zeros((max(1, places), shape.layers, len(Part)), np.int64)
        self.tables = AdapterTables(pool, ranks, starts, floats)

    def put(self, place: int, adapter: Adapter) -> None:
        self.clear(place)
        pool, ranks, starts = self.tables.pool[place], self.tables.ranks[place], self.tables.starts
        for index, layer in enumerate(adapter.layers):
            for part, pair in layer.items():
                shrink_at, expand_at, width = starts[part].tolist()
                shrink_at += index * self._layer_floats
                expand_at += index * self._layer_floats
                tiles = pack(pair.shrink, Format.FP32).weights.view(np.float32)
                pool[shrink_at : shrink_at + len(tiles)] = tiles
                rows = pool[expand_at : expand_at + pair.rank * width].reshape(pair.rank, width)
                rows[:, : len(pair.expand)] = pair.expand.T
                ranks[index, part] = pair.rank

    def clear(self, place: int) -> None:
        if self.tables.ranks[place].any():
            self.tables.ranks[place] = 0
            self._memory.madvise(mmap.MADV_DONTNEED, place * self._place_bytes, self._place_bytes)

    def rows(self, count: int) -> Any:
        """Room for so many rows on their way through adapters."""
        return np.zeros((count, 3, whole(self.max_rank, CHANNELS)), np.float32)


def _layout(shape: DecoderShape, max_rank: int) -> tuple[Any, int]:
    """For each part where its two matrices begin in a layer, and how wide a row of the second is."""
    starts, at = [], 0
    for part, (inputs, outputs) in part_sizes(shape).items():
        # Gates and ups are added to in whole groups.
        width = whole(outputs, GROUP) if part in (Part.GATE, Part.UP) else outputs
        expand_at = at + whole(max_rank, CHANNELS) * whole(inputs, GROUP)
        starts.append((at, expand_at, width))
        at = expand_at + max_rank * width
    return np.array(starts, np.int64), at


@njit(**OPTIONS)
def shrink(adapted, layer, first_part, parts, inputs, row):
    """The row times the first matrices of neighbouring parts, which all have it as input."""
    if adapted is None:
        return
    if adapted.of_row.shape[0] == 0 or adapted.of_row[row] < 0:
        return
    tables, place = adapted.tables, adapted.of_row[row]
    groups = inputs.floats.shape[1] // GROUP
    row_at = inputs.floats.ctypes.data + row * inputs.floats.strides[0]
    pool = tables.pool.ctypes.data + place * tables.pool.strides[0] + layer * tables.layer_floats * 4
    nothing = np.int64(adapted.nothing.ctypes.data)
    zero = np.int64(0)
    for part in range(parts):
        tiles = (tables.ranks[place, layer, first_part + part] + CHANNELS - 1) // CHANNELS
        begin = pool + tables.starts[first_part + part, 0] * 4
        out = adapted.rows.ctypes.data + row * adapted.rows.strides[0] + part * adapted.rows.strides[1]
        for tile in range(tiles):
            weights = np.int64(begin + tile * groups * GROUP * CHANNELS * 4)
            target = np.int64(out + tile * CHANNELS * 4)
            _shrink_one(
                weights, zero, np.int64(row_at), zero, zero, zero, zero, groups, nothing, zero, target, zero
            )


@njit(**OPTIONS)
def expand(adapted, layer, part, number, row, first, count, out, at):
    """out[at:] += columns `first` to `first + count` of what the `number`th shrunk row gives for the part."""
    tables, place = adapted.tables, adapted.of_row[row]
    rank = tables.ranks[place, layer, part]
    if rank == 0:
        return
    begin = layer * tables.layer_floats + tables.starts[part, 1]
    width = tables.starts[part, 2]
    pool = tables.pool[place]
    shares = adapted.rows[row, number]
    shares_at, step = np.int64(shares.ctypes.data), np.int64(width * 4)
    rows_at = np.int64(pool.ctypes.data + (begin + first) * 4)
    out_at = np.int64(out.ctypes.data + at * 4)
    whole_lanes = count - count % LANES
    zero = np.int64(0)
    for lane in range(0, whole_lanes, LANES):
        _expand_one(shares_at, zero, rows_at + lane * 4, step, rank, out_at + lane * 4, zero)
    for column in range(whole_lanes, count):
        total = out[at + column]
        for i in range(rank):
            total += shares[i] * pool[begin + i * width + first + column]
        out[at + column] = total


@njit(**OPTIONS)
def expand_row(adapted, layer, first_part, parts, row, out):
    """Adds to a whole row what neighbouring parts give for it, one after the other."""
    if adapted is None:
        return
    if adapted.of_row.shape[0] == 0 or adapted.of_row[row] < 0:
        return
    at = np.int64(0)
    for number in range(parts):
        width = adapted.tables.starts[first_part + number, 2]
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
