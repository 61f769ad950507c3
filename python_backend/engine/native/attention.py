"""Attention over blocks of the cache, for a few rows of one sequence at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import njit

from python_backend.engine.native.arithmetic import OPTIONS, exponential, hyperbolic_tangent
from python_backend.engine.native.combining import (
    LANES,
    QUERIES,
    Lanes,
    floats,
    halfs,
    make_combine,
    store_float,
    store_half,
    widen,
)

_LEAST = np.float32(-3.4e38)
_HALF_BYTES = np.int64(2)


def _make_sums(adds: bool, lanes: Lanes) -> Callable[..., None]:
    """As `make_combine`'s, for any number of queries: four at a time while there are four."""
    one, two, three, four = (make_combine(count + 1, adds, lanes) for count in range(QUERIES))

    @njit(**OPTIONS)
    def sums(count, shares, shares_stride, rows, rows_stride, length, out, out_stride):
        done = 0
        while done < count:
            p, s = shares + done * shares_stride, out + done * out_stride
            left = count - done
            if left >= 4:
                four(p, shares_stride, rows, rows_stride, length, s, out_stride)
            elif left == 3:
                three(p, shares_stride, rows, rows_stride, length, s, out_stride)
            elif left == 2:
                two(p, shares_stride, rows, rows_stride, length, s, out_stride)
            else:
                one(p, shares_stride, rows, rows_stride, length, s, out_stride)
            done += QUERIES

    return sums


_score_floats, _score_halfs = _make_sums(False, floats), _make_sums(False, halfs)
_weigh_floats, _weigh_halfs = _make_sums(True, floats), _make_sums(True, halfs)


@njit(**OPTIONS)
def norm_heads(qkv, row, begin, end, weight, epsilon):
    """What lies from `begin` to `end`, as many times as the weight is wide."""
    size = weight.shape[0]
    for part in range((end - begin) // size):
        at = begin + part * size
        total = np.float32(0.0)
        for i in range(size):
            total += qkv[row, at + i] * qkv[row, at + i]
        factor = np.float32(1.0) / np.sqrt(total / np.float32(size) + epsilon)
        for i in range(size):
            qkv[row, at + i] *= factor * weight[i]


@njit(**OPTIONS)
def turn_and_store(d, layer, rope, row, qkv, batch, cache):
    """Turns a row's queries and keys, and puts its keys and values into the cache."""
    for head in range(d.heads + d.kv_heads):
        at = head * d.head_dim
        for pair in range(d.rotary):
            cosine, sine = batch.cosines[rope, row, pair], batch.sines[rope, row, pair]
            left, right = qkv[row, at + 2 * pair], qkv[row, at + 2 * pair + 1]
            qkv[row, at + 2 * pair] = left * cosine - right * sine
            qkv[row, at + 2 * pair + 1] = left * sine + right * cosine
    position = batch.positions[row]
    place = cache.place_of_layer[layer]
    block = batch.tables[batch.tables_at[cache.table_of_layer[layer], row] + position // d.slots]
    slot = position % d.slots
    keys_at = d.heads * d.head_dim
    values_at = keys_at + d.kv_heads * d.head_dim
    keys, values = cache.keys[place, block], cache.values[place, block]
    size = d.kv_bytes
    for head in range(d.kv_heads):
        key_at = np.int64(keys[head].ctypes.data + slot * size)
        value_at = np.int64(values[head, slot].ctypes.data)
        for i in range(d.head_dim):
            key, value = qkv[row, keys_at + i], qkv[row, values_at + i]
            if size == _HALF_BYTES:
                store_half(key_at + i * keys.strides[1], key)
                store_half(value_at + i * size, value)
            else:
                store_float(key_at + i * keys.strides[1], key)
                store_float(value_at + i * size, value)
        keys_at, values_at = keys_at + d.head_dim, values_at + d.head_dim


@njit(**OPTIONS)
def _soften(scores, first, end, softcap, sink):
    """The scores from `first` to `end` as shares that sum up to 1 with the sink's, and none for the rest."""
    # Loops over slices become vector code; those over `first + i` have to ask whether the index is below 0.
    before, seen, after = scores[:first], scores[first:end], scores[end:]
    for i in range(before.shape[0]):
        before[i] = np.float32(0.0)
    for i in range(after.shape[0]):
        after[i] = np.float32(0.0)
    count = seen.shape[0]
    if softcap > 0:
        for i in range(count):
            seen[i] = softcap * hyperbolic_tangent(seen[i] / softcap)
    highest = sink
    for i in range(count):
        highest = seen[i] if seen[i] > highest else highest
    # Where there is no sink, what is added here is too small to change a sum of 1 and more.
    total = exponential(sink - highest)
    for i in range(count):
        share = exponential(seen[i] - highest)
        seen[i] = share
        total += share
    inverse = np.float32(1.0) / total
    for i in range(count):
        seen[i] *= inverse


@njit(**OPTIONS)
def attend(
    d, window, sinks, layer, row, rows, kv_head, qkv, batch, cache, queries, scores, sums, wide, attended
):
    """Attention of a few neighbouring rows of one sequence, for the query heads that share a key head.

    Keys lie in the cache dimension by dimension and values token by token, so that both sums run over whole
    vectors: sixteen scores, or as many dimensions, at a time. A row's own view begins and ends inside the
    view of them all; what it does not see has a share of zero, which changes no sum. Where more queries than
    one sum takes read a block of halfs, it is made floats once for all of them: to the same numbers.
    """
    position = batch.positions[row]
    place, table = cache.place_of_layer[layer], batch.tables_at[cache.table_of_layer[layer], row]
    first_block = 0 if window == 0 else max(0, position + 1 - window) // d.slots
    last_block = (position + rows - 1) // d.slots
    origin = first_block * d.slots
    stop = position + rows - origin
    group = d.heads // d.kv_heads
    count = rows * group
    key_lanes, value_lanes = cache.keys.shape[4] // d.kv_bytes, cache.values.shape[4] // d.kv_bytes
    is_wider = d.kv_bytes == _HALF_BYTES and count > QUERIES
    size = np.int64(4) if is_wider else np.int64(d.kv_bytes)
    wide_at = np.int64(wide.ctypes.data)
    head_keys = cache.keys.ctypes.data + place * cache.keys.strides[0] + kv_head * cache.keys.strides[2]
    head_values = (
        cache.values.ctypes.data + place * cache.values.strides[0] + kv_head * cache.values.strides[2]
    )
    queries_at, queries_stride = queries.ctypes.data, queries.strides[0]
    scores_at, scores_stride = scores.ctypes.data, scores.strides[0]
    sums_at, sums_stride = sums.ctypes.data, sums.strides[0]
    for query in range(count):
        at = (kv_head * group + query % group) * d.head_dim
        source, target = qkv[row + query // group, at : at + d.head_dim], queries[query]
        for i in range(d.head_dim):
            target[i] = source[i] * d.query_scale
        for i in range(value_lanes):
            sums[query, i] = np.float32(0.0)
    for block in range(first_block, last_block + 1):
        keys = np.int64(head_keys + batch.tables[table + block] * cache.keys.strides[1])
        if is_wider:
            widen(keys, d.head_dim * key_lanes, wide_at)
            keys = wide_at
        step = key_lanes * size
        for part in range(0, key_lanes, LANES):
            at, begin = scores_at + (block * d.slots - origin + part) * 4, keys + part * size
            if size == _HALF_BYTES:
                _score_halfs(count, queries_at, queries_stride, begin, step, d.head_dim, at, scores_stride)
            else:
                _score_floats(count, queries_at, queries_stride, begin, step, d.head_dim, at, scores_stride)
    for query in range(count):
        end = position + query // group + 1
        first = 0 if window == 0 else max(0, end - window)
        sink = sinks[kv_head * group + query % group] if sinks.shape[0] > 0 else _LEAST
        _soften(scores[query, :stop], first - origin, end - origin, d.attention_softcap, sink)
    for block in range(first_block, last_block + 1):
        tokens = min(d.slots, position + rows - block * d.slots)
        values = np.int64(head_values + batch.tables[table + block] * cache.values.strides[1])
        if is_wider:
            widen(values, tokens * value_lanes, wide_at)
            values = wide_at
        at, step = scores_at + (block * d.slots - origin) * 4, value_lanes * size
        for part in range(0, value_lanes, LANES):
            begin, target = values + part * size, sums_at + part * 4
            if size == _HALF_BYTES:
                _weigh_halfs(count, at, scores_stride, begin, step, tokens, target, sums_stride)
            else:
                _weigh_floats(count, at, scores_stride, begin, step, tokens, target, sums_stride)
    for query in range(count):
        at = (kv_head * group + query % group) * d.head_dim
        for i in range(d.head_dim):
            attended[row + query // group, at + i] = sums[query, i]
