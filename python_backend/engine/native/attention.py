"""Attention over blocks of the cache, for a few rows of one sequence at a time."""

from __future__ import annotations

import numpy as np
from numba import njit

from python_backend.engine.native.arithmetic import OPTIONS, exponential, hyperbolic_tangent
from python_backend.engine.native.microkernel import LANES, QUERIES, make_combine

_score_one, _score_two, _score_three, _score_four = (make_combine(n + 1, adds=False) for n in range(QUERIES))
_weigh_one, _weigh_two, _weigh_three, _weigh_four = (make_combine(n + 1, adds=True) for n in range(QUERIES))
_LEAST = np.float32(-3.4e38)


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
    for head in range(d.kv_heads):
        for i in range(d.head_dim):
            cache.keys[place, block, head, i, slot] = qkv[row, keys_at + head * d.head_dim + i]
            cache.values[place, block, head, slot, i] = qkv[row, values_at + head * d.head_dim + i]


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
def attend(d, window, sinks, layer, row, rows, kv_head, qkv, batch, cache, queries, scores, sums, attended):
    """Attention of a few neighbouring rows of one sequence, for the query heads that share a key head.

    Keys lie in the cache dimension by dimension and values token by token, so that both sums run over whole
    vectors: sixteen scores, or as many dimensions, at a time. A row's own view begins and ends inside the
    view of them all; what it does not see has a share of zero, which changes no sum.
    """
    position = batch.positions[row]
    place, table = cache.place_of_layer[layer], batch.tables_at[cache.table_of_layer[layer], row]
    first_block = 0 if window == 0 else max(0, position + 1 - window) // d.slots
    last_block = (position + rows - 1) // d.slots
    origin = first_block * d.slots
    stop = position + rows - origin
    group = d.heads // d.kv_heads
    count = rows * group
    key_lanes, value_lanes = cache.keys.shape[4], cache.values.shape[4]
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
        sink = sinks[kv_head * group + query % group] if sinks.shape[0] > 0 else _LEAST
        _soften(scores[query, :stop], first - origin, end - origin, d.attention_softcap, sink)
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
