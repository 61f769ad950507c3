"""One forward pass as a single compiled function that every thread of the team runs.

Between two barriers the threads share the work by taking numbers, so that a thread whose core is busy with
something else holds up nobody for long. Every row is computed by itself and in one fixed order: neither the
batch nor the number of threads changes a bit of it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from python_backend.engine.native.arithmetic import (
    FAST,
    OPTIONS,
    activate_group,
    exponential,
    hyperbolic_tangent,
    quantize,
)
from python_backend.engine.native.microkernel import (
    CHANNELS,
    GROUP,
    LANES,
    QUERIES,
    ROWS,
    Format,
    make_combine,
    make_tile,
)
from python_backend.engine.native.threads import meet, take_number

_tile_fp32 = {rows: make_tile(Format.FP32, rows) for rows in (1, ROWS)}
_tile_int8 = {rows: make_tile(Format.INT8, rows) for rows in (1, ROWS)}
_tile_int4 = {rows: make_tile(Format.INT4, rows) for rows in (1, ROWS)}
_fp32_one, _fp32_four = _tile_fp32[1], _tile_fp32[ROWS]
_int8_one, _int8_four = _tile_int8[1], _tile_int8[ROWS]
_int4_one, _int4_four = _tile_int4[1], _tile_int4[ROWS]
_score_one, _score_two, _score_three, _score_four = (make_combine(n + 1, adds=False) for n in range(QUERIES))
_weigh_one, _weigh_two, _weigh_three, _weigh_four = (make_combine(n + 1, adds=True) for n in range(QUERIES))
_FP32, _INT8, _INT4 = (int(kind) for kind in (Format.FP32, Format.INT8, Format.INT4))
_TILE_BYTES = tuple(kind.bytes_per_group for kind in Format)
_TILE_SCALES = tuple(kind.scales_per_group for kind in Format)
# Tiles a thread takes at a time: few enough that all threads end together, enough that numbers are cheap.
_SHARES = 6
_LEAST = np.float32(-3.4e38)


class Dimensions(NamedTuple):
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary: int  # pairs of a head that turn
    vocabulary: int
    slots: int
    format: int
    head_format: int
    is_gelu: bool
    epsilon: np.float32
    query_scale: np.float32
    embedding_scale: np.float32
    attention_softcap: np.float32  # 0: none
    logits_softcap: np.float32


class Arrays(NamedTuple):
    """Every weight of the model, layer by layer; what a model lacks has no columns."""

    attention_norm: Any
    qkv: Any
    qkv_scales: Any
    qkv_bias: Any
    query_norm: Any
    key_norm: Any
    attention_out: Any
    attention_out_scales: Any
    attention_out_bias: Any
    attention_out_norm: Any
    mlp_norm: Any
    gate_up: Any
    gate_up_scales: Any
    gate_up_bias: Any
    down: Any
    down_scales: Any
    down_bias: Any
    mlp_out_norm: Any
    final_norm: Any
    head: Any
    head_scales: Any
    embeddings: Any
    embeddings_scales: Any
    windows: Any
    rope_of_layer: Any


class Batch(NamedTuple):
    """What this step computes: flat rows, and the blocks their sequences have."""

    token_ids: Any
    positions: Any
    tables_at: Any  # where the row's block table begins in `tables`
    tables: Any
    cosines: Any  # (ropes, rows, rotary)
    sines: Any
    wanted: Any  # rows whose logits are asked for
    first_rows: Any  # neighbouring rows of one sequence attend together: the first of them,
    row_counts: Any  # and how many they are


class Cache(NamedTuple):
    """Keys (layers, blocks, heads, dimensions, slots), values (layers, blocks, heads, slots, dimensions).

    The last axis of each is padded to whole vectors.
    """

    keys: Any
    values: Any


class Inputs(NamedTuple):
    """Rows that a product takes in, padded to whole groups: as floats, and in bytes.

    A byte of a group is worth `worths`, and the group's bytes together `totals`.
    """

    floats: Any
    levels: Any
    worths: Any
    totals: Any


class Scratch(NamedTuple):
    """What flows between the stages."""

    hidden: Any
    normed: Inputs
    qkv: Any
    attended: Inputs
    inner: Inputs
    delta: Any
    queries: Any  # (threads, queries that attend together, dimensions of a head)
    scores: Any  # (threads, the same, tokens)
    sums: Any  # (threads, the same, dimensions of a head)
    tiles: Any  # (threads, floats of the tiles that make one group of `inner`, and that group)


@njit(**OPTIONS)
def _tile(kind, weights, scales, rows, activations, stride, worths, totals, groups_stride, groups, out):
    """One tile's product with 1 or 4 rows; addresses and strides as the microkernel wants them."""
    if kind == _INT8:
        if rows == 1:
            _int8_one(weights, scales, activations, stride, worths, totals, groups_stride, groups, out)
        else:
            _int8_four(weights, scales, activations, stride, worths, totals, groups_stride, groups, out)
    elif kind == _INT4:
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
def _product(kind, weights, scales, bias, rows, inputs, adds, out, buffer, counters, number, threads):
    """out = or += rows · weightsᵀ + bias; `number` is the counter by which the threads share the tiles."""
    count = (out.shape[1] + CHANNELS - 1) // CHANNELS
    share = max(1, count // (threads * _SHARES))
    address, stride = _rows_of(kind, inputs)
    worths, totals, groups_stride = (
        inputs.worths.ctypes.data,
        inputs.totals.ctypes.data,
        inputs.worths.strides[0],
    )
    groups = inputs.floats.shape[1] // GROUP
    weights_at, weights_step = weights.ctypes.data, groups * _TILE_BYTES[kind]
    scales_at, scales_step = scales.ctypes.data, groups * _TILE_SCALES[kind] * 2
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
def _rows_of(kind, inputs):
    if kind == _FP32:
        return inputs.floats.ctypes.data, inputs.floats.strides[0]
    return inputs.levels.ctypes.data, inputs.levels.strides[0]


@njit(**OPTIONS)
def _mlp_inner(kind, is_gelu, weights, scales, bias, rows, inputs, inner, buffer, counters, number):
    """activate(gate) · up, in groups of 32 channels; tiles of gates and of ups take turns in `weights`."""
    count = inner.floats.shape[1] // GROUP
    tiles = 2 * GROUP // CHANNELS
    address, stride = _rows_of(kind, inputs)
    worths, totals, groups_stride = (
        inputs.worths.ctypes.data,
        inputs.totals.ctypes.data,
        inputs.worths.strides[0],
    )
    groups = inputs.floats.shape[1] // GROUP
    weights_step, scales_step = groups * _TILE_BYTES[kind], groups * _TILE_SCALES[kind] * 2
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
                if kind != _FP32:
                    quantize(inner.floats, row + r, group, inner.levels, inner.worths, inner.totals)
            row += size


@njit(**OPTIONS)
def _quantize_row(inputs, row):
    for group in range(inputs.floats.shape[1] // GROUP):
        quantize(inputs.floats, row, group, inputs.levels, inputs.worths, inputs.totals)


@njit(**OPTIONS)
def _prepare(kind, rows, row, weight, epsilon, inputs, target):
    """The normed row as row `target` of the inputs of a product."""
    size = weight.shape[0]
    total = np.float32(0.0)
    for i in range(size):
        total += rows[row, i] * rows[row, i]
    factor = np.float32(1.0) / np.sqrt(total / np.float32(size) + epsilon)
    for i in range(size):
        inputs.floats[target, i] = rows[row, i] * factor * weight[i]
    if kind != _FP32:
        _quantize_row(inputs, target)


@njit(**OPTIONS)
def _embed(d, w, token_id, row, out):
    """One row of the embeddings, out of their tiles."""
    groups = (d.hidden + GROUP - 1) // GROUP
    tile, channel = token_id // CHANNELS, token_id % CHANNELS
    half, lane = channel // 4, channel % 4
    at = tile * groups * _TILE_BYTES[d.head_format]
    for i in range(d.hidden):
        if d.head_format == _FP32:
            place = at + (i * CHANNELS + channel) * 4
            value = w.embeddings[place : place + 4].view(np.float32)[0]
        else:
            level = w.embeddings[at + ((i // 4) * 2 + half) * 16 + lane * 4 + i % 4]
            signed = np.float32(np.int8(level))
            scale = w.embeddings_scales[(tile * groups + i // GROUP) * CHANNELS + channel]
            value = signed * scale
        out[row, i] = value * d.embedding_scale


@njit(**OPTIONS)
def _norm_heads(qkv, row, first, heads, weight, epsilon):
    size = weight.shape[0]
    for head in range(first, first + heads):
        at = head * size
        total = np.float32(0.0)
        for i in range(size):
            total += qkv[row, at + i] * qkv[row, at + i]
        factor = np.float32(1.0) / np.sqrt(total / np.float32(size) + epsilon)
        for i in range(size):
            qkv[row, at + i] *= factor * weight[i]


@njit(**OPTIONS)
def _turn_and_store(d, layer, rope, row, qkv, batch, cache):
    """Turns a row's queries and keys, and puts its keys and values into the cache."""
    for head in range(d.heads + d.kv_heads):
        at = head * d.head_dim
        for pair in range(d.rotary):
            cosine, sine = batch.cosines[rope, row, pair], batch.sines[rope, row, pair]
            left, right = qkv[row, at + 2 * pair], qkv[row, at + 2 * pair + 1]
            qkv[row, at + 2 * pair] = left * cosine - right * sine
            qkv[row, at + 2 * pair + 1] = left * sine + right * cosine
    position = batch.positions[row]
    block = batch.tables[batch.tables_at[row] + position // d.slots]
    slot = position % d.slots
    keys_at = d.heads * d.head_dim
    values_at = keys_at + d.kv_heads * d.head_dim
    for head in range(d.kv_heads):
        for i in range(d.head_dim):
            cache.keys[layer, block, head, i, slot] = qkv[row, keys_at + head * d.head_dim + i]
            cache.values[layer, block, head, slot, i] = qkv[row, values_at + head * d.head_dim + i]


@njit(**OPTIONS)
def _soften(scores, query, start, first, end, stop, softcap):
    """The scores from `first` to `end` as shares that sum up to 1, and none for the rest."""
    for token in range(start, first):
        scores[query, token] = np.float32(0.0)
    for token in range(end, stop):
        scores[query, token] = np.float32(0.0)
    if softcap > 0:
        for token in range(first, end):
            scores[query, token] = softcap * hyperbolic_tangent(scores[query, token] / softcap)
    highest = _LEAST
    for token in range(first, end):
        highest = max(highest, scores[query, token])
    total = np.float32(0.0)
    for token in range(first, end):
        share = exponential(scores[query, token] - highest)
        scores[query, token] = share
        total += share
    inverse = np.float32(1.0) / total
    for token in range(first, end):
        scores[query, token] *= inverse


@njit(**OPTIONS)
def _score(count, query, query_stride, keys, keys_stride, head_dim, scores, stride):
    done = 0
    while done < count:
        q, s = query + done * query_stride, scores + done * stride
        left = count - done
        if left >= 4:
            _score_four(q, query_stride, keys, keys_stride, head_dim, s, stride)
        elif left == 3:
            _score_three(q, query_stride, keys, keys_stride, head_dim, s, stride)
        elif left == 2:
            _score_two(q, query_stride, keys, keys_stride, head_dim, s, stride)
        else:
            _score_one(q, query_stride, keys, keys_stride, head_dim, s, stride)
        done += QUERIES


@njit(**OPTIONS)
def _weigh(count, shares, shares_stride, values, values_stride, tokens, sums, sums_stride):
    done = 0
    while done < count:
        p, s = shares + done * shares_stride, sums + done * sums_stride
        left = count - done
        if left >= 4:
            _weigh_four(p, shares_stride, values, values_stride, tokens, s, sums_stride)
        elif left == 3:
            _weigh_three(p, shares_stride, values, values_stride, tokens, s, sums_stride)
        elif left == 2:
            _weigh_two(p, shares_stride, values, values_stride, tokens, s, sums_stride)
        else:
            _weigh_one(p, shares_stride, values, values_stride, tokens, s, sums_stride)
        done += QUERIES


@njit(**OPTIONS)
def _attend(d, window, layer, row, rows, kv_head, qkv, batch, cache, queries, scores, sums, attended):
    """Attention of a few neighbouring rows of one sequence, for the query heads that share a key head.

    Keys lie in the cache dimension by dimension and values token by token, so that both sums run over whole
    vectors: sixteen scores, or as many dimensions, at a time. A row's own view begins and ends inside the
    view of them all; what it does not see has a share of zero, which changes no sum.
    """
    position = batch.positions[row]
    table = batch.tables_at[row]
    first_block = 0 if window == 0 else max(0, position + 1 - window) // d.slots
    last_block = (position + rows - 1) // d.slots
    origin = first_block * d.slots
    stop = position + rows - origin
    group = d.heads // d.kv_heads
    count = rows * group
    key_lanes, value_lanes = cache.keys.shape[4], cache.values.shape[4]
    head_keys = cache.keys.ctypes.data + layer * cache.keys.strides[0] + kv_head * cache.keys.strides[2]
    head_values = (
        cache.values.ctypes.data + layer * cache.values.strides[0] + kv_head * cache.values.strides[2]
    )
    queries_at, queries_stride = queries.ctypes.data, queries.strides[0]
    scores_at, scores_stride = scores.ctypes.data, scores.strides[0]
    sums_at, sums_stride = sums.ctypes.data, sums.strides[0]
    for query in range(count):
        at = (kv_head * group + query % group) * d.head_dim
        for i in range(d.head_dim):
            queries[query, i] = qkv[row + query // group, at + i] * d.query_scale
        for i in range(value_lanes):
            sums[query, i] = np.float32(0.0)
    for block in range(first_block, last_block + 1):
        keys = head_keys + batch.tables[table + block] * cache.keys.strides[1]
        for part in range(0, key_lanes, LANES):
            at = scores_at + (block * d.slots - origin + part) * 4
            _score(
                count,
                queries_at,
                queries_stride,
                keys + part * 4,
                key_lanes * 4,
                d.head_dim,
                at,
                scores_stride,
            )
    for query in range(count):
        end = position + query // group + 1
        first = 0 if window == 0 else max(0, end - window)
        _soften(scores, query, 0, first - origin, end - origin, stop, d.attention_softcap)
    for block in range(first_block, last_block + 1):
        tokens = min(d.slots, position + rows - block * d.slots)
        values = head_values + batch.tables[table + block] * cache.values.strides[1]
        at = scores_at + (block * d.slots - origin) * 4
        for part in range(0, value_lanes, LANES):
            _weigh(
                count,
                at,
                scores_stride,
                values + part * 4,
                value_lanes * 4,
                tokens,
                sums_at + part * 4,
                sums_stride,
            )
    for query in range(count):
        at = (kv_head * group + query % group) * d.head_dim
        for i in range(d.head_dim):
            attended[row + query // group, at + i] = sums[query, i]


@njit(**OPTIONS)
def _fold_in(norm, delta, row, epsilon, hidden):
    """hidden += normed delta, for models that norm what a sublayer gives back."""
    size = norm.shape[0]
    total = np.float32(0.0)
    for i in range(size):
        total += delta[row, i] * delta[row, i]
    factor = np.float32(1.0) / np.sqrt(total / np.float32(size) + epsilon)
    for i in range(size):
        hidden[row, i] += delta[row, i] * factor * norm[i]


@njit(nogil=True, cache=True, error_model="numpy", fastmath=FAST)
def run_step(me, threads, d, w, batch, x, cache, logits, counters):
    rows = batch.token_ids.shape[0]
    layers = w.attention_norm.shape[0]
    buffer, queries, scores, sums = x.tiles[me], x.queries[me], x.scores[me], x.sums[me]
    has_head_norms = w.query_norm.shape[1] > 0
    number = 1  # counter 0 belongs to the barrier
    for row in range(me, rows, threads):
        _embed(d, w, batch.token_ids[row], row, x.hidden)
        _prepare(d.format, x.hidden, row, w.attention_norm[0], d.epsilon, x.normed, row)
    meet(counters, threads)
    for layer in range(layers):
        _product(
            d.format,
            w.qkv[layer],
            w.qkv_scales[layer],
            w.qkv_bias[layer],
            rows,
            x.normed,
            False,
            x.qkv,
            buffer,
            counters,
            number,
            threads,
        )
        meet(counters, threads)
        for row in range(me, rows, threads):
            if has_head_norms:
                _norm_heads(x.qkv, row, 0, d.heads, w.query_norm[layer], d.epsilon)
                _norm_heads(x.qkv, row, d.heads, d.kv_heads, w.key_norm[layer], d.epsilon)
            _turn_and_store(d, layer, w.rope_of_layer[layer], row, x.qkv, batch, cache)
        meet(counters, threads)
        while True:
            task = take_number(counters, number + 1)
            if task >= batch.first_rows.shape[0] * d.kv_heads:
                break
            # The last rows of a prompt see the most: they come first, so that all threads end together.
            index = batch.first_rows.shape[0] - 1 - task // d.kv_heads
            _attend(
                d,
                w.windows[layer],
                layer,
                batch.first_rows[index],
                batch.row_counts[index],
                task % d.kv_heads,
                x.qkv,
                batch,
                cache,
                queries,
                scores,
                sums,
                x.attended.floats,
            )
        meet(counters, threads)
        if d.format != _FP32:
            for row in range(me, rows, threads):
                _quantize_row(x.attended, row)
            meet(counters, threads)
        has_norm = w.attention_out_norm.shape[1] > 0
        target = x.delta if has_norm else x.hidden
        _product(
            d.format,
            w.attention_out[layer],
            w.attention_out_scales[layer],
            w.attention_out_bias[layer],
            rows,
            x.attended,
            not has_norm,
            target,
            buffer,
            counters,
            number + 2,
            threads,
        )
        meet(counters, threads)
        for row in range(me, rows, threads):
            if has_norm:
                _fold_in(w.attention_out_norm[layer], x.delta, row, d.epsilon, x.hidden)
            _prepare(d.format, x.hidden, row, w.mlp_norm[layer], d.epsilon, x.normed, row)
        meet(counters, threads)
        _mlp_inner(
            d.format,
            d.is_gelu,
            w.gate_up[layer],
            w.gate_up_scales[layer],
            w.gate_up_bias[layer],
            rows,
            x.normed,
            x.inner,
            buffer,
            counters,
            number + 3,
        )
        meet(counters, threads)
        has_norm = w.mlp_out_norm.shape[1] > 0
        target = x.delta if has_norm else x.hidden
        _product(
            d.format,
            w.down[layer],
            w.down_scales[layer],
            w.down_bias[layer],
            rows,
            x.inner,
            not has_norm,
            target,
            buffer,
            counters,
            number + 4,
            threads,
        )
        meet(counters, threads)
        number += 5
        for row in range(me, rows, threads):
            if has_norm:
                _fold_in(w.mlp_out_norm[layer], x.delta, row, d.epsilon, x.hidden)
            if layer + 1 < layers:
                _prepare(d.format, x.hidden, row, w.attention_norm[layer + 1], d.epsilon, x.normed, row)
        meet(counters, threads)
    wanted = batch.wanted.shape[0]
    for index in range(me, wanted, threads):
        _prepare(d.head_format, x.hidden, batch.wanted[index], w.final_norm, d.epsilon, x.normed, index)
    meet(counters, threads)
    _product(
        d.head_format,
        w.head,
        w.head_scales,
        w.final_norm[:0],
        wanted,
        x.normed,
        False,
        logits,
        buffer,
        counters,
        number,
        threads,
    )
    meet(counters, threads)
    if d.logits_softcap > 0:
        for index in range(me, wanted, threads):
            for i in range(logits.shape[1]):
                logits[index, i] = d.logits_softcap * hyperbolic_tangent(logits[index, i] / d.logits_softcap)
        meet(counters, threads)
