"""Products of a step's rows with packed weights, and what goes in and out of them."""

from __future__ import annotations

import numpy as np
from numba import njit

from python_backend.engine.native.adapters import expand_gates_and_ups
from python_backend.engine.native.amx import WIDE_ROWS, WIDE_TILES
from python_backend.engine.native.arithmetic import (
    NOUGHT,
    ONE,
    OPTIONS,
    activate_group,
    float_of_bits,
    quantize,
)
from python_backend.engine.native.microkernel import CHANNELS, GROUP, MOST_ROWS
from python_backend.engine.native.tables import Inputs
from python_backend.engine.native.threads import take_number
from python_backend.engine.native.tiles import (
    FP32,
    LAID_OUT_BYTES,
    TILE_BYTES,
    TILE_SCALES,
    laid_out,
    times_tile,
    times_wide,
)
from python_backend.engine.native.weight_layouts import whole

# Tiles a thread takes at a time: few enough that all threads end together, enough that numbers are cheap.
_SHARES = 6
_UPS_STEP = np.int64(GROUP * 4)  # bytes from the gates of a row to its ups
_INNER_STEP = 2 * _UPS_STEP  # and to the gates and ups of the next
# Rows whose gates and ups are computed sixteen at a time: weights are laid out once for all of them.
_INNER_ROWS = np.int64(4 * WIDE_ROWS)
_WIDTH = np.int64(WIDE_TILES * CHANNELS)
_TILE_STEP = np.int64(4 * CHANNELS)  # bytes from a tile's sums of a row to the next tile's
# A thread's buffer has what tiles begin with, gates and ups, and then the weights of tiles, laid out.
_LAID_OUT_AT = np.int64(_WIDTH + 2 * _INNER_ROWS * GROUP)


def buffer_floats(inputs: int) -> int:
    """Of a thread that multiplies rows of so many inputs."""
    return int(_LAID_OUT_AT) + WIDE_TILES * whole(inputs, GROUP) // GROUP * LAID_OUT_BYTES // 4


@njit(**OPTIONS)
def _addresses(kind, matrix, tile, inputs, row):
    """Of the tile's weights and scales, and of what there is of the row, with the bytes to the next one."""
    groups = inputs.floats.shape[1] // GROUP
    w = matrix.weights.ctypes.data + tile * groups * TILE_BYTES[kind]
    s = matrix.scales.ctypes.data + tile * groups * TILE_SCALES[kind] * 2
    a, a_step = inputs.levels.ctypes.data, inputs.levels.strides[0]
    if kind == FP32:
        a, a_step = inputs.floats.ctypes.data, inputs.floats.strides[0]
    sizes, totals, g_step = inputs.worths.ctypes.data, inputs.totals.ctypes.data, inputs.worths.strides[0]
    return w, s, a + row * a_step, a_step, sizes + row * g_step, totals + row * g_step, g_step, groups


@njit(**OPTIONS)
def _times_rows(kind, matrix, tile, inputs, first_row, rows, begin, begin_step, out, out_step):
    """`rows` rows from `first_row` on times one tile, four at a time, and what is left two and one."""
    w, s, a, a_step, sizes, totals, g_step, groups = _addresses(kind, matrix, tile, inputs, first_row)
    row = 0
    while row < rows:
        size = MOST_ROWS
        while size > rows - row:
            size //= 2
        times_tile(
            kind,
            size,
            w,
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
def _times_two_tiles(
    kind, is_wide, matrix, tile, inputs, first_row, rows, laid_out_at, begin, begin_step, out, out_step, gap
):
    """The same times this tile and the next, whose sums end `gap` bytes behind."""
    w, s, a, a_step, sizes, totals, g_step, groups = _addresses(kind, matrix, tile, inputs, first_row)
    done = rows - rows % WIDE_ROWS if is_wide else NOUGHT
    if done > 0:
        w = laid_out(kind, w, s, WIDE_TILES * groups, laid_out_at)
    for row in range(0, done, WIDE_ROWS):
        times_wide(
            kind,
            w,
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
            gap,
        )
    begin, out = begin + done * begin_step, out + done * out_step
    first_row, rows = first_row + done, rows - done
    _times_rows(kind, matrix, tile, inputs, first_row, rows, begin, begin_step, out, out_step)
    begin, out = begin + _TILE_STEP, out + gap
    _times_rows(kind, matrix, tile + 1, inputs, first_row, rows, begin, begin_step, out, out_step)


@njit(**OPTIONS)
def product(kind, matrix, rows, wide_from, inputs, adds, out, buffer, counters, number, threads):
    """out = or += rows · weightsᵀ + bias; `number` is the counter by which the threads share the tiles.

    From `wide_from` rows on they are multiplied sixteen at a time.
    """
    count = (out.shape[1] + CHANNELS - 1) // CHANNELS
    is_wide = kind != FP32 and rows >= wide_from
    at_once = WIDE_TILES if is_wide else 1
    share = max(1, count // (threads * _SHARES * at_once)) * at_once
    has_bias = matrix.bias.shape[0] > 0
    out_at, out_step = np.int64(out.ctypes.data), out.strides[0]
    bias_at, buffer_at = np.int64(matrix.bias.ctypes.data), np.int64(buffer.ctypes.data)
    laid_out_at = buffer_at + _LAID_OUT_AT * 4
    while True:
        tile = take_number(counters, number) * share
        if tile >= count:
            return
        end = min(tile + share, count)
        while tile < end:
            column = tile * CHANNELS
            begin, begin_step = out_at + column * 4, out_step
            target = begin
            if not adds:
                begin, begin_step = bias_at + column * 4 if has_bias else buffer_at, NOUGHT
                for i in range(_WIDTH):
                    buffer[i] = np.float32(0.0)
            if column + CHANNELS > out.shape[1] or (has_bias and adds):
                _by_way_of(kind, matrix, tile, inputs, rows, adds, out, buffer)
            elif is_wide and column + _WIDTH <= out.shape[1]:
                _times_two_tiles(
                    kind, is_wide, matrix, tile, inputs, NOUGHT, rows, laid_out_at,
                    begin, begin_step, target, out_step, _TILE_STEP,
                )  # fmt: skip
                tile += 1
            else:
                _times_rows(kind, matrix, tile, inputs, NOUGHT, rows, begin, begin_step, target, out_step)
            tile += 1


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
        _times_rows(kind, matrix, tile, inputs, row, ONE, at, NOUGHT, at, NOUGHT)
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
    gates_ups, laid_out_at = nothing + _WIDTH * 4, nothing + _LAID_OUT_AT * 4
    is_wide = kind != FP32 and rows >= wide_from
    most = _INNER_ROWS if is_wide else MOST_ROWS
    for i in range(_WIDTH):
        buffer[i] = np.float32(0.0)
    while True:
        group = take_number(counters, number)
        if group >= count:
            return
        row = NOUGHT
        while row < rows:
            # A few rows at a time, so that gates and ups are still at hand when they meet.
            size = min(most, rows - row)
            for pair in range(tiles // 2):
                at = group * tiles + 2 * pair
                begin = bias_at + at * CHANNELS * 4 if has_bias else nothing
                target = gates_ups + pair * _TILE_STEP
                _times_two_tiles(
                    kind, is_wide, matrix, at, inputs, row, size, laid_out_at,
                    begin, NOUGHT, target, _INNER_STEP, _UPS_STEP,
                )  # fmt: skip
            for r in range(size):
                at = _WIDTH + r * 2 * GROUP
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
