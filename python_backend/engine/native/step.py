"""One forward pass as a compiled function that every thread of the team runs.

Between two barriers the threads share the work by taking numbers, so that a thread whose core is busy with
something else holds up nobody for long. Every row is computed by itself and in one fixed order: neither the
batch nor the number of threads changes a bit of it.
"""

from __future__ import annotations

from numba import njit

from python_backend.engine.native.adapters import (
    ATTENTION_OUT,
    DOWN,
    GATE,
    ONE_PART,
    QUERY,
    THREE_PARTS,
    TWO_PARTS,
    expand_row,
    shrink,
)
from python_backend.engine.native.addresses import call_at
from python_backend.engine.native.amx import begin_tiles, end_tiles
from python_backend.engine.native.arithmetic import NO, NOUGHT, OPTIONS, hyperbolic_tangent
from python_backend.engine.native.experts import think
from python_backend.engine.native.layer_attention import COUNTERS, rows_left
from python_backend.engine.native.products import embed, fold_in, mlp_inner, prepare, product
from python_backend.engine.native.tables import Matrix
from python_backend.engine.native.threads import FIRST_FREE, meet

# Counters by which the threads of a layer share its products, after those of its attention.
_MLP_INNER, _MLP_OUT, _EXPERTS = range(COUNTERS, COUNTERS + 3)


def counters_per_layer(experts: int) -> int:
    """The experts' router has one, and each expert two."""
    return _EXPERTS + 1 + 2 * experts


@njit(**OPTIONS)
def _mlp(d, w, layer, mlp, adds, rows, x, adapted, me, threads, counters, number):
    """From the normed rows to what a dense layer adds to the hidden ones."""
    buffer = x.tiles[me]
    gate_up = Matrix(w.gate_up[mlp], w.gate_up_scales[mlp], w.gate_up_bias[mlp])
    down = Matrix(w.down[mlp], w.down_scales[mlp], w.down_bias[mlp])
    mlp_inner(
        d.format,
        d.activation,
        d.activation_limit,
        gate_up,
        adapted,
        layer,
        rows,
        d.wide_from,
        x.normed,
        x.inner,
        buffer,
        counters,
        number + _MLP_INNER,
    )
    meet(counters, threads)
    for row in range(me, rows, threads):
        shrink(adapted, layer, DOWN, ONE_PART, x.inner, row)
    target = x.hidden if adds else x.delta
    number += _MLP_OUT
    product(d.format, down, rows, d.wide_from, x.inner, adds, target, buffer, counters, number, threads)
    meet(counters, threads)


@njit(cache=True, **OPTIONS)
def run_step(me, threads, attention, d, w, batch, x, experts, adapted, cache, logits, counters):
    """`attention` is where `layer_attention` lies, compiled for the types that are told here.

    `experts` and `adapted` are None where the model has none: then what is for them is not compiled.
    """
    is_wide = batch.token_ids.shape[0] >= d.wide_from
    rows = batch.token_ids.shape[0]
    layers = w.attention_norm.shape[0]
    per_layer = _EXPERTS + 1
    if experts is not None:
        per_layer += 2 * (experts.first_places.shape[0] - 1)
    number = FIRST_FREE
    is_normed = w.attention_out_norm.shape[1] > 0
    if is_wide:
        begin_tiles()
    for row in range(me, rows, threads):
        embed(d, w.embeddings, w.embeddings_scales, batch.token_ids[row], row, x.hidden)
        prepare(d.format, x.hidden, row, w.attention_norm[0], d.epsilon, x.normed, row)
        shrink(adapted, NOUGHT, QUERY, THREE_PARTS, x.normed, row)
    meet(counters, threads)
    for layer in range(layers):
        told = (d, w.attention, is_normed, layer, batch, x, adapted, cache, me, threads, counters, number)
        call_at(attention, told)
        rows = rows_left(batch, layer, layers)
        for row in range(me, rows, threads):
            if is_normed:
                expand_row(adapted, layer, ATTENTION_OUT, ONE_PART, row, x.delta)
                fold_in(w.attention_out_norm[layer], x.delta, row, d.epsilon, x.hidden)
            else:
                expand_row(adapted, layer, ATTENTION_OUT, ONE_PART, row, x.hidden)
            prepare(d.format, x.hidden, row, w.mlp_norm[layer], d.epsilon, x.normed, row)
            shrink(adapted, layer, GATE, TWO_PARTS, x.normed, row)
        meet(counters, threads)
        has_norm = w.mlp_out_norm.shape[1] > 0
        mlp = w.mlp_of_layer[layer]
        if mlp < 0:
            think(d, w, -1 - mlp, rows, x, experts, me, threads, counters, number + _EXPERTS)
        else:
            _mlp(d, w, layer, mlp, not has_norm, rows, x, adapted, me, threads, counters, number)
        for row in range(me, rows, threads):
            expand_row(adapted, layer, DOWN, ONE_PART, row, x.delta if has_norm else x.hidden)
            if has_norm:
                fold_in(w.mlp_out_norm[layer], x.delta, row, d.epsilon, x.hidden)
            elif mlp < 0:
                for i in range(d.hidden):
                    x.hidden[row, i] += x.delta[row, i]
            if layer + 1 < layers:
                prepare(d.format, x.hidden, row, w.attention_norm[layer + 1], d.epsilon, x.normed, row)
                shrink(adapted, layer + 1, QUERY, THREE_PARTS, x.normed, row)
        meet(counters, threads)
        number += per_layer
    for row in range(me, rows, threads):  # the wanted ones
        prepare(d.head_format, x.hidden, row, w.final_norm, d.epsilon, x.normed, row)
    meet(counters, threads)
    head = Matrix(w.head, w.head_scales, w.final_norm[:0])
    product(
        d.head_format, head, rows, d.wide_from, x.normed, NO, logits, x.tiles[me], counters, number, threads
    )
    if is_wide:
        end_tiles()
    meet(counters, threads)
    if d.logits_softcap > 0:
        for row in range(me, rows, threads):
            for i in range(logits.shape[1]):
                logits[row, i] = d.logits_softcap * hyperbolic_tangent(logits[row, i] / d.logits_softcap)
        meet(counters, threads)
