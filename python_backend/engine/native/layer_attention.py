"""Attention of one layer, from its normed rows to what it adds to the hidden ones: half of a step.

It is compiled by itself, while another process compiles the rest, which calls it by its address.
"""

from __future__ import annotations

from numba import njit

from python_backend.engine.native.adapters import (
    ATTENTION_OUT,
    ONE_PART,
    QUERY,
    THREE_PARTS,
    expand_row,
    shrink,
)
from python_backend.engine.native.arithmetic import NO, NOUGHT, ONE, OPTIONS
from python_backend.engine.native.attention import attend, norm_heads, turn_and_store
from python_backend.engine.native.products import product, quantize_row
from python_backend.engine.native.tables import Matrix
from python_backend.engine.native.threads import meet, take_number
from python_backend.engine.native.tiles import FP32

# Counters by which the threads share the products, and what attends; and how many these are.
_QKV, _ATTENTION, _OUT, COUNTERS = range(4)


@njit(**OPTIONS)
def rows_left(batch, layer, layers):
    """How many rows go on behind a layer's attention: behind that of the last one, the wanted ones."""
    return batch.token_ids.shape[0] if layer + 1 < layers else batch.wanted.shape[0]


@njit(**OPTIONS)
def _attend_all(d, w, layer, batch, x, cache, me, counters, number):
    window, sinks = w.windows[layer], w.sinks[layer]
    queries, scores, sums, wide = x.queries[me], x.scores[me], x.sums[me], x.wide[me]
    wanted = batch.wanted.shape[0]
    leaves_out = rows_left(batch, layer, w.qkv.shape[0]) < batch.token_ids.shape[0]
    parts = wanted if leaves_out else batch.first_rows.shape[0]
    while True:
        task = take_number(counters, number)
        if task >= parts * d.kv_heads:
            return
        # The last rows of a prompt see the most: they come first, so that all threads end together.
        part, kv_head = parts - 1 - task // d.kv_heads, task % d.kv_heads
        row, rows = batch.first_rows[part], batch.row_counts[part]
        if leaves_out:
            row, rows = batch.wanted[part], ONE
        out = x.attended.floats
        attend(
            d, window, sinks, layer, row, rows, kv_head, x.qkv, batch, cache, queries, scores, sums, wide, out
        )


@njit(**OPTIONS)
def _move_up(batch, x, adapted):
    """Brings the wanted rows, told in order, to the front: each is read before its place is taken."""
    for index in range(batch.wanted.shape[0]):
        row = batch.wanted[index]
        for i in range(x.hidden.shape[1]):
            x.hidden[index, i] = x.hidden[row, i]
        for i in range(x.attended.floats.shape[1]):
            x.attended.floats[index, i] = x.attended.floats[row, i]
        if adapted is not None and adapted.of_row.shape[0] > 0:
            adapted.of_row[index] = adapted.of_row[row]


@njit(cache=True, **OPTIONS)
def layer_attention(d, w, is_normed, layer, batch, x, adapted, cache, me, threads, counters, number):
    """`is_normed`: what comes out is normed before it is added, and so left in `x.delta`.

    Nobody reads what the last layer would make of the other rows: of those it keeps keys and values alone.
    """
    rows = batch.token_ids.shape[0]
    buffer = x.tiles[me]
    qkv = Matrix(w.qkv[layer], w.qkv_scales[layer], w.qkv_bias[layer])
    product(d.format, qkv, rows, d.wide_from, x.normed, NO, x.qkv, buffer, counters, number + _QKV, threads)
    meet(counters, threads)
    for row in range(me, rows, threads):
        expand_row(adapted, layer, QUERY, THREE_PARTS, row, x.qkv)
        if w.query_norm.shape[1] > 0:
            keys = d.heads * d.head_dim
            norm_heads(x.qkv, row, NOUGHT, keys, w.query_norm[layer], d.epsilon)
            norm_heads(x.qkv, row, keys, keys + d.kv_heads * d.head_dim, w.key_norm[layer], d.epsilon)
        turn_and_store(d, layer, w.rope_of_layer[layer], row, x.qkv, batch, cache)
    meet(counters, threads)
    _attend_all(d, w, layer, batch, x, cache, me, counters, number + _ATTENTION)
    meet(counters, threads)
    left = rows_left(batch, layer, w.qkv.shape[0])
    if left < rows:
        if me == 0:
            _move_up(batch, x, adapted)
        meet(counters, threads)
        rows = left
    for row in range(me, rows, threads):
        if d.format != FP32:
            quantize_row(x.attended, row)
        shrink(adapted, layer, ATTENTION_OUT, ONE_PART, x.attended, row)
    if d.format != FP32:
        meet(counters, threads)
    target = x.delta if is_normed else x.hidden
    matrix = Matrix(w.attention_out[layer], w.attention_out_scales[layer], w.attention_out_bias[layer])
    adds, number = not is_normed, number + _OUT
    product(d.format, matrix, rows, d.wide_from, x.attended, adds, target, buffer, counters, number, threads)
    meet(counters, threads)
