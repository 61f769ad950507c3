"""Products of a step's rows with packed weights, and what goes in and out of them."""

from __future__ import annotations

import numpy as np
from numba import njit

from python_backend.engine.native.arithmetic import OPTIONS, activate_group, quantize
from python_backend.engine.native.microkernel import CHANNELS, GROUP, ROWS, Format, make_tile
from python_backend.engine.native.threads import take_number

_fp32_one, _fp32_four = make_tile(Format.FP32, 1), make_tile(Format.FP32, ROWS)
_int8_one, _int8_four = make_tile(Format.INT8, 1), make_tile(Format.INT8, ROWS)
_int4_one, _int4_four = make_tile(Format.INT4, 1), make_tile(Format.INT4, ROWS)
FP32, INT8, INT4 = int(Format.FP32), int(Format.INT8), int(Format.INT4)
TILE_BYTES = tuple(kind.bytes_per_group for kind in Format)
TILE_SCALES = tuple(kind.scales_per_group for kind in Format)
# Tiles a thread takes at a time: few enough that all threads end together, enough that numbers are cheap.
_SHARES = 6


@njit(**OPTIONS)
def _tile(kind, weights, scales, rows, activations, stride, worths, totals, groups_stride, groups, out):
    """One tile's product with 1 or 4 rows; addresses and strides as the microkernel wants them."""
    if kind == INT8:
        if rows == 1:
            _int8_one(weights, scales, activations, stride, worths, totals, groups_stride, groups, out)
        else:
            _int8_four(weights, scales, activations, stride, worths, totals, groups_stride, groups, out)
    elif kind == INT4:
        if rows == 1:
            _int4_one(weights, scales, activations, stride, worths, totals, groups_stride, groups, out)
        else:
            _int4_four(weights, scales, activations, stride, worths, totals, groups_stride, groups, out)
    elif rows == 1:
        _fp32_one(weights, scales, activations, stride, worths, totals, groups_stride, groups, out)
    else:
        _fp32_four(weights, scales, activations, stride, worths, totals, groups_stride, groups, out)


@njit(**OPTIONS)
def _put(buffer, row, tile, size, bias, adds, out):
    """A tile's sums to their place; whole tiles in loops the compiler can unroll."""
    column = tile * CHANNELS
    has_bias = bias.shape[0] > 0
    if column + CHANNELS <= out.shape[1] and not has_bias:
        for r in range(size):
            if adds:
                for c in range(CHANNELS):
                    out[row + r, column + c] += buffer[r * CHANNELS + c]
            else:
                for c in range(CHANNELS):
                    out[row + r, column + c] = buffer[r * CHANNELS + c]
        return
    for r in range(size):
        for c in range(min(CHANNELS, out.shape[1] - column)):
            value = buffer[r * CHANNELS + c]
            if has_bias:
                value += bias[column + c]
            if adds:
                value += out[row + r, column + c]
            out[row + r, column + c] = value


@njit(**OPTIONS)
def _rows_of(kind, inputs):
    if kind == FP32:
        return inputs.floats.ctypes.data, inputs.floats.strides[0]
    return inputs.levels.ctypes.data, inputs.levels.strides[0]


@njit(**OPTIONS)
def product(kind, matrix, rows, inputs, adds, out, buffer, counters, number, threads):
    """out = or += rows · weightsᵀ + bias; `number` is the counter by which the threads share the tiles."""
    weights, scales, bias = matrix
    count = (out.shape[1] + CHANNELS - 1) // CHANNELS
    share = max(1, count // (threads * _SHARES))
    address, stride = _rows_of(kind, inputs)
    worths, totals, groups_stride = (
        inputs.worths.ctypes.data,
        inputs.totals.ctypes.data,
        inputs.worths.strides[0],
    )
    groups = inputs.floats.shape[1] // GROUP
    weights_at, weights_step = weights.ctypes.data, groups * TILE_BYTES[kind]
    scales_at, scales_step = scales.ctypes.data, groups * TILE_SCALES[kind] * 2
    target = buffer.ctypes.data
    while True:
        first = take_number(counters, number) * share
        if first >= count:
            return
        for tile in range(first, min(first + share, count)):
            row = 0
            while row < rows:
                size = ROWS if row + ROWS <= rows else 1
                _tile(
                    kind,
                    weights_at + tile * weights_step,
                    scales_at + tile * scales_step,
                    size,
                    address + row * stride,
                    stride,
                    worths + row * groups_stride,
                    totals + row * groups_stride,
                    groups_stride,
                    groups,
                    target,
                )
                _put(buffer, row, tile, size, bias, adds, out)
                row += size


@njit(**OPTIONS)
def mlp_inner(kind, is_gelu, matrix, rows, inputs, inner, buffer, counters, number):
    """activate(gate) · up, in groups of 32 channels; tiles of gates and of ups take turns in the matrix."""
    weights, scales, bias = matrix
    count = inner.floats.shape[1] // GROUP
    tiles = 2 * GROUP // CHANNELS
    address, stride = _rows_of(kind, inputs)
    worths, totals, groups_stride = (
        inputs.worths.ctypes.data,
        inputs.totals.ctypes.data,
        inputs.worths.strides[0],
    )
    groups = inputs.floats.shape[1] // GROUP
    weights_step, scales_step = groups * TILE_BYTES[kind], groups * TILE_SCALES[kind] * 2
    target = buffer.ctypes.data
    gates_ups = buffer[-2 * GROUP :]
    has_bias = bias.shape[0] > 0
    while True:
        group = take_number(counters, number)
        if group >= count:
            return
        row = 0
        while row < rows:
            size = ROWS if row + ROWS <= rows else 1
            for tile in range(tiles):
                _tile(
                    kind,
                    weights.ctypes.data + (group * tiles + tile) * weights_step,
                    scales.ctypes.data + (group * tiles + tile) * scales_step,
                    size,
                    address + row * stride,
                    stride,
                    worths + row * groups_stride,
                    totals + row * groups_stride,
                    groups_stride,
                    groups,
                    target + tile * ROWS * CHANNELS * 4,
                )
            for r in range(size):
                for tile in range(tiles):
                    first = (tile % 2) * GROUP + (tile // 2) * CHANNELS
                    for c in range(CHANNELS):
                        value = buffer[(tile * ROWS + r) * CHANNELS + c]
                        if has_bias:
                            value += bias[(group * tiles + tile) * CHANNELS + c]
                        gates_ups[first + c] = value
                activate_group(gates_ups, is_gelu, inner.floats, row + r, group * GROUP)
                if kind != FP32:
                    quantize(inner.floats, row + r, group, inner.levels, inner.worths, inner.totals)
            row += size


@njit(**OPTIONS)
def quantize_row(inputs, row):
    for group in range(inputs.floats.shape[1] // GROUP):
        quantize(inputs.floats, row, group, inputs.levels, inputs.worths, inputs.totals)


@njit(**OPTIONS)
def prepare(kind, rows, row, weight, epsilon, inputs, target):
    """The normed row as row `target` of the inputs of a product."""
    size = weight.shape[0]
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
def embed(d, w, token_id, row, out):
    """One row of the embeddings, out of their tiles."""
    groups = (d.hidden + GROUP - 1) // GROUP
    tile, channel = token_id // CHANNELS, token_id % CHANNELS
    half, lane = channel // 4, channel % 4
    at = tile * groups * TILE_BYTES[d.head_format]
    for i in range(d.hidden):
        if d.head_format == FP32:
            place = at + (i * CHANNELS + channel) * 4
            value = w.embeddings[place : place + 4].view(np.float32)[0]
        else:
            level = w.embeddings[at + ((i // 4) * 2 + half) * 16 + lane * 4 + i % 4]
            signed = np.float32(np.int8(level))
            scale = w.embeddings_scales[(tile * groups + i // GROUP) * CHANNELS + channel]
            value = signed * scale
        out[row, i] = value * d.embedding_scale
