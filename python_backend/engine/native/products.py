"""Products of a step's rows with packed weights, and what goes in and out of them."""

from __future__ import annotations

import numpy as np
from numba import njit

from python_backend.engine.native.adapters import expand_gates_and_ups
from python_backend.engine.native.amx import GROUP_BYTES, NEVER, WIDE_ROWS, spread
from python_backend.engine.native.arithmetic import (
    NOUGHT,
    ONE,
    OPTIONS,
    activate_group,
    float_of_bits,
    quantize,
)
from python_backend.engine.native.microkernel import CHANNELS, GROUP, ROWS
from python_backend.engine.native.tables import Inputs
from python_backend.engine.native.threads import take_number
from python_backend.engine.native.tiles import FP32, INT4, TILE_BYTES, TILE_SCALES, times_tile
from python_backend.engine.native.weight_layouts import whole

# Tiles a thread takes at a time: few enough that all threads end together, enough that numbers are cheap.
_SHARES = 6
_INNER_STEP = np.int64(2 * GROUP * 4)  # bytes from the gates and ups of a row to those of the next
# Rows whose gates and ups AMX computes at a time: weights are spread to bytes once for all of them.
_INNER_ROWS = np.int64(4 * WIDE_ROWS)
# A thread's buffer has what a tile begins with, gates and ups, and then a tile's weights as bytes.
_SPREAD_AT = np.int64(CHANNELS + 2 * _INNER_ROWS * GROUP)


def buffer_floats(inputs: int) -> int:
    """Of a thread that multiplies rows of so many inputs."""
    return int(_SPREAD_AT) + whole(inputs, GROUP) // GROUP * GROUP_BYTES // 4


@njit(**OPTIONS)
def _times_rows(
    kind, matrix, tile, inputs, first_row, rows, wide_from, spread_at, begin, begin_step, out, out_step
):
    """`rows` rows from `first_row` on times one tile, four, or many of them sixteen, at a time."""
    groups = inputs.floats.shape[1] // GROUP
    w = matrix.weights.ctypes.data + tile * groups * TILE_BYTES[kind]
    s = matrix.scales.ctypes.data + tile * groups * TILE_SCALES[kind] * 2
    a, a_step = inputs.levels.ctypes.data, inputs.levels.strides[0]
    if kind == FP32:
        a, a_step = inputs.floats.ctypes.data, inputs.floats.strides[0]
    sizes, totals, g_step = inputs.worths.ctypes.data, inputs.totals.ctypes.data, inputs.worths.strides[0]
    a, sizes, totals = a + first_row * a_step, sizes + first_row * g_step, totals + first_row * g_step
    is_wide, wide_w = kind != FP32 and rows >= wide_from, w
    if is_wide and kind == INT4:
        wide_w = spread_at
        spread(w, groups, wide_w)
    row = 0
    while row < rows:
        size = ROWS if row + ROWS <= rows else 1
        if is_wide and row + WIDE_ROWS <= rows:
            size = WIDE_ROWS
        times_tile(
            kind,
            size,
            wide_w if size == WIDE_ROWS else w,
            s,
            a + row * a_step,
            a_step,
            sizes + row * g_step,
            totals + row * g_step,
            g_step,
            groups,
            begin + row * begin_step,
            begin_step,
            out + row * out_step,
            out_step,
        )
        row += size


@njit(**OPTIONS)
def product(kind, matrix, rows, wide_from, inputs, adds, out, buffer, counters, number, threads):
    """out = or += rows · weightsᵀ + bias; `number` is the counter by which the threads share the tiles.

    From `wide_from` rows on they are multiplied by AMX.
    """
    count = (out.shape[1] + CHANNELS - 1) // CHANNELS
    share = max(1, count // (threads * _SHARES))
    has_bias = matrix.bias.shape[0] > 0
    out_at, out_step = np.int64(out.ctypes.data), out.strides[0]
    bias_at, buffer_at = np.int64(matrix.bias.ctypes.data), np.int64(buffer.ctypes.data)
    spread_at = buffer_at + _SPREAD_AT * 4
    while True:
        first = take_number(counters, number) * share
        if first >= count:
            return
        for tile in range(first, min(first + share, count)):
            column = tile * CHANNELS
            target = out_at + column * 4
            if column + CHANNELS > out.shape[1] or (has_bias and adds):
                _by_way_of(kind, matrix, tile, inputs, rows, adds, out, buffer)
            elif adds:
                _times_rows(
                    kind, matrix, tile, inputs, NOUGHT, rows, wide_from, spread_at,
                    target, out_step, target, out_step,
                )  # fmt: skip
            else:
                begin = bias_at + column * 4 if has_bias else buffer_at
                for i in range(CHANNELS):
                    buffer[i] = np.float32(0.0)
                _times_rows(
                    kind, matrix, tile, inputs, NOUGHT, rows, wide_from, spread_at,
                    begin, NOUGHT, target, out_step,
                )  # fmt: skip


@njit(**OPTIONS)
def _by_way_of(kind, matrix, tile, inputs, rows, adds, out, buffer):
    """A tile that is not whole, or has more than one thing to begin with: row by row through the buffer."""
    column = tile * CHANNELS
    columns = min(CHANNELS, out.shape[1] - column)
    at = np.int64(buffer.ctypes.data)
    for row in range(rows):
        for c in range(CHANNELS):
            buffer[c] = np.float32(0.0)
        for c in range(columns):
            if matrix.bias.shape[0] > 0:
                buffer[c] += matrix.bias[column + c]
            if adds:
                buffer[c] += out[row, column + c]
        _times_rows(kind, matrix, tile, inputs, row, ONE, NEVER, NOUGHT, at, NOUGHT, at, NOUGHT)
        for c in range(columns):
            out[row, column + c] = buffer[c]


@njit(**OPTIONS)
def mlp_inner(
    kind, activation, limit, matrix, adapted, layer, rows, wide_from, inputs, inner, buffer, counters, number
):
    """activate(gate) · up, in groups of 32 channels; tiles of gates and of ups take turns in the matrix."""
    count = inner.floats.shape[1] // GROUP
    tiles = 2 * GROUP // CHANNELS
    has_bias = matrix.bias.shape[0] > 0
    bias_at, nothing = np.int64(matrix.bias.ctypes.data), np.int64(buffer.ctypes.data)
    gates_ups, spread_at = nothing + CHANNELS * 4, nothing + _SPREAD_AT * 4
    most = _INNER_ROWS if rows >= wide_from else ROWS
    for i in range(CHANNELS):
        buffer[i] = np.float32(0.0)
    while True:
        group = take_number(counters, number)
        if group >= count:
            return
        row = NOUGHT
        while row < rows:
            # A few rows at a time, so that gates and ups are still at hand when they meet.
            size = min(most, rows - row)
            for tile in range(tiles):
                at = group * tiles + tile
                begin = bias_at + at * CHANNELS * 4 if has_bias else nothing
                place = (tile % 2) * GROUP + (tile // 2) * CHANNELS
                target = gates_ups + place * 4
                _times_rows(
                    kind, matrix, at, inputs, row, size, wide_from, spread_at,
                    begin, NOUGHT, target, _INNER_STEP,
                )  # fmt: skip
            for r in range(size):
                at = CHANNELS + r * 2 * GROUP
                expand_gates_and_ups(adapted, layer, row + r, group, buffer, at)
                activate_group(buffer, at, activation, limit, inner.floats, row + r, group)
                if kind != FP32:
                    quantize(inner, row + r, group)
            row += size


@njit(**OPTIONS)
def part_of(inputs, first, end):
    return Inputs(
        inputs.floats[first:end], inputs.levels[first:end], inputs.worths[first:end], inputs.totals[first:end]
    )


@njit(**OPTIONS)
def quantize_row(inputs, row):
    for group in range(inputs.floats.shape[1] // GROUP):
        quantize(inputs, row, group)


@njit(**OPTIONS)
def prepare(kind, rows, row, weight, epsilon, inputs, target):
    """The normed row as row `target` of the inputs of a product; without a weight the row as it is."""
    size = weight.shape[0]
    if size == 0:
        for i in range(rows.shape[1]):
            inputs.floats[target, i] = rows[row, i]
    else:
        total = np.float32(0.0)
        for i in range(size):
            total += rows[row, i] * rows[row, i]
        factor = np.float32(1.0) / np.sqrt(total / np.float32(size) + epsilon)
        for i in range(size):
            inputs.floats[target, i] = rows[row, i] * factor * weight[i]
    if kind != FP32:
        quantize_row(inputs, target)


@njit(**OPTIONS)
def fold_in(norm, delta, row, epsilon, hidden):
    """hidden += normed delta, for models that norm what a sublayer gives back."""
    size = norm.shape[0]
    total = np.float32(0.0)
    for i in range(size):
        total += delta[row, i] * delta[row, i]
    factor = np.float32(1.0) / np.sqrt(total / np.float32(size) + epsilon)
    for i in range(size):
        hidden[row, i] += delta[row, i] * factor * norm[i]


@njit(**OPTIONS)
def embed(d, embeddings, scales, token_id, row, out):
    """One row of the embeddings, out of their tiles."""
    groups = (d.hidden + GROUP - 1) // GROUP
    tile, channel = token_id // CHANNELS, token_id % CHANNELS
    half, lane = channel // 4, channel % 4
    at = tile * groups * TILE_BYTES[d.head_format]
    for i in range(d.hidden):
        if d.head_format == FP32:
            place = at + (i * CHANNELS + channel) * 4
            bits = np.int32(0)
            for part in range(4):
                bits |= np.int32(embeddings[place + part]) << np.int32(8 * part)
            value = float_of_bits(bits)
        else:
            level = embeddings[at + ((i // 4) * 2 + half) * 16 + lane * 4 + i % 4]
            signed = np.float32(np.int8(level))
            scale = scales[(tile * groups + i // GROUP) * CHANNELS + channel]
            value = signed * scale
        out[row, i] = value * d.embedding_scale
