"""Layers of experts: each row goes through a few of many, and rows of one expert are computed together."""

from __future__ import annotations

import numpy as np
from numba import njit

from python_backend.engine.native.amx import NEVER
from python_backend.engine.native.arithmetic import NO, OPTIONS, exponential
from python_backend.engine.native.products import mlp_inner, part_of, product
from python_backend.engine.native.tables import Matrix
from python_backend.engine.native.threads import meet
from python_backend.engine.native.tiles import FP32

_ONE = np.float32(1.0)


@njit(**OPTIONS)
def _choose(scores, row, renormalizes, shared, chosen, shares):
    """The likeliest experts of a row, their shares of softmax over all, and those that all rows go to."""
    experts = scores.shape[1] - (1 if shared > 0 else 0)
    choices = chosen.shape[1] - shared
    highest = scores[row, 0]
    for expert in range(1, experts):
        highest = max(highest, scores[row, expert])
    total = np.float32(0.0)
    for expert in range(experts):
        total += exponential(scores[row, expert] - highest)
    kept = np.float32(0.0)
    for rank in range(choices):
        best = -1
        for expert in range(experts):
            is_taken = False
            for earlier in range(rank):
                is_taken |= chosen[row, earlier] == expert
            # A score that is not a number is never above another: someone must be chosen all the same.
            if not is_taken and (best < 0 or scores[row, expert] > scores[row, best]):
                best = expert
        chosen[row, rank] = best
        shares[row, rank] = exponential(scores[row, best] - highest) / total
        kept += shares[row, rank]
    if renormalizes:
        for rank in range(choices):
            shares[row, rank] /= kept
    for part in range(shared):
        chosen[row, choices + part] = experts + part
        shares[row, choices + part] = _ONE / (_ONE + exponential(-scores[row, experts]))


@njit(**OPTIONS)
def _line_up(chosen, rows, first_places, filled, places):
    """Where each row stands for each of its experts, when the rows of an expert stand together."""
    first_places[:] = 0
    for row in range(rows):
        for rank in range(chosen.shape[1]):
            first_places[chosen[row, rank] + 1] += 1
    for expert in range(first_places.shape[0] - 1):
        first_places[expert + 1] += first_places[expert]
    filled[:] = 0
    for row in range(rows):
        for rank in range(chosen.shape[1]):
            expert = chosen[row, rank]
            places[row, rank] = first_places[expert] + filled[expert]
            filled[expert] += 1


@njit(**OPTIONS)
def _copy_row(source, row, target, place):
    # Loops: what numba makes of an assignment of slices takes many times as long to compile.
    for i in range(source.floats.shape[1]):
        target.floats[place, i] = source.floats[row, i]
        target.levels[place, i] = source.levels[row, i]
    for group in range(source.worths.shape[1]):
        target.worths[place, group] = source.worths[row, group]
        target.totals[place, group] = source.totals[row, group]


@njit(**OPTIONS)
def _gather(d, w, layer, rows, x, e, me, threads, counters, number):
    """Chooses each row's experts and puts the rows of each expert side by side."""
    router = Matrix(w.router[layer], w.head_scales[:0], w.router_bias[layer])
    product(FP32, router, rows, NEVER, x.normed, NO, e.scores, x.tiles[me], counters, number, threads)
    meet(counters, threads)
    for row in range(me, rows, threads):
        _choose(e.scores, row, d.experts_renormalize, d.experts_shared, e.chosen, e.shares)
    meet(counters, threads)
    if me == 0:
        _line_up(e.chosen, rows, e.first_places, e.filled, e.places)
    meet(counters, threads)
    for row in range(me, rows, threads):
        for rank in range(d.experts_per_row):
            _copy_row(x.normed, row, e.gathered, e.places[row, rank])
    meet(counters, threads)


@njit(**OPTIONS)
def think(d, w, layer, rows, x, e, me, threads, counters, number):
    """The normed rows through their experts; what comes back, added up by share, is in `x.delta`."""
    if e is None:
        return
    _gather(d, w, layer, rows, x, e, me, threads, counters, number)
    experts = e.first_places.shape[0] - 1
    buffer = x.tiles[me]
    for expert in range(experts):
        first, end = e.first_places[expert], e.first_places[expert + 1]
        if first < end:
            matrix = Matrix(
                w.expert_gate_up[layer, expert],
                w.expert_gate_up_scales[layer, expert],
                w.expert_gate_up_bias[layer, expert],
            )
            gathered, inner = part_of(e.gathered, first, end), part_of(e.inner, first, end)
            at = number + 1 + expert
            mlp_inner(
                d.format,
                d.activation,
                d.activation_limit,
                matrix,
                None,
                layer,
                end - first,
                d.wide_from,
                gathered,
                inner,
                buffer,
                counters,
                at,
            )
    meet(counters, threads)
    for expert in range(experts):
        first, end = e.first_places[expert], e.first_places[expert + 1]
        if first < end:
            matrix = Matrix(
                w.expert_down[layer, expert],
                w.expert_down_scales[layer, expert],
                w.expert_down_bias[layer, expert],
            )
            inner, out = part_of(e.inner, first, end), e.out[first:end]
            at = number + 1 + experts + expert
            rows_here = end - first
            product(d.format, matrix, rows_here, d.wide_from, inner, NO, out, buffer, counters, at, threads)
    meet(counters, threads)
    for row in range(me, rows, threads):
        for i in range(x.delta.shape[1]):
            total = np.float32(0.0)
            for rank in range(d.experts_per_row):
                total += e.shares[row, rank] * e.out[e.places[row, rank], i]
            x.delta[row, i] = total
