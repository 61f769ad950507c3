"""Drawing among the tokens that top_k and top_p keep, without sorting.

Tokens stand in one order: the larger score first, of equals the lower id. A token is among the top_k if fewer
than k stand above it, and of those within top_p if the shares above it do not reach top_p. So a token is
drawn from all, and one count of what stands above it says whether it is kept. If not, nothing below it is
kept either, and the next one is drawn from those above it. With the same noise each time, the token that is
kept in the end is the one that noise picks from the kept ones alone. How many draws that takes grows with the
logarithm of the kept share: one or two for any usual top_p. For top_k, whose share may be tiny, the border is
searched first; top_p then needs the weight of what lies above it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from python_backend.engine.cuda.kernels.token_choice import (
    SLICES,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    best_of_parts,
    finite_or_zero,
    hand_out,
    load_scores,
    noise,
    number,
    peak_of,
    whole_word,
)

_INFINITY = tl.constexpr(float("inf"))
# So far below the peak, and further by the logarithm of their number, all tokens together weigh less than
# fp32 can tell.
_NEGLIGIBLE_NATS = tl.constexpr(16.6355)
# Each halves a bracket twice; from any usual temperature 16 leave nothing between its ends.
_MOST_PASSES = tl.constexpr(64)


@triton.jit
def _is_limited(settings, slot):
    draws = number(settings, slot, TEMPERATURE) > 0
    return draws & ((whole_word(settings, slot, TOP_K) > 0) | (number(settings, slot, TOP_P) < 1))


@triton.jit
def _is_above(found, places, score, token):
    return (found > score) | ((found == score) & (places < token))


@triton.jit(do_not_specialize_on_alignment=SLICES)
def weigh(
    scores,
    stride,
    vocabulary,
    slots,
    settings,
    peaks,
    keys,
    ids,
    weights,
    weights_above,
    counts_above,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
):
    """What stands above each row's best token, in each part, beside the weight of the whole part."""
    row, part = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots + row)
    if _is_limited(settings, slot):
        temperature = number(settings, slot, TEMPERATURE)
        peak, token = best_of_parts(peaks, keys, ids, row, temperature, vocabulary, PART, PARTS)
        score = tl.load(scores + row.to(tl.int64) * stride + token)
        places = part * PART + tl.arange(0, PART)
        found = load_scores(scores, stride, row, places, vocabulary)
        above = _is_above(found, places, score, token)
        weight = tl.exp((found - finite_or_zero(peak)) / temperature)
        tl.store(weights + row * PARTS + part, tl.sum(weight, 0))
        tl.store(weights_above + row * PARTS + part, tl.sum(tl.where(above, weight, 0.0), 0))
        tl.store(counts_above + row * PARTS + part, tl.sum(above.to(tl.int32), 0))


@triton.jit
def _counts_from(scores, stride, row, vocabulary, first, second, third, fourth, BLOCK: tl.constexpr):
    """How many scores reach each of four.

    Each lane counts in four bytes of one word: it sees fewer than 256 scores of a vocabulary below a million.
    """
    lanes = tl.zeros([BLOCK], tl.int32)
    for start in range(0, vocabulary, BLOCK):
        found = load_scores(scores, stride, row, start + tl.arange(0, BLOCK), vocabulary)
        lanes += tl.where(found >= first, 1, 0)
        lanes += tl.where(found >= second, 1 << 8, 0)
        lanes += tl.where(found >= third, 1 << 16, 0)
        lanes += tl.where(found >= fourth, 1 << 24, 0)
    return (
        tl.sum(lanes & 255, 0),
        tl.sum((lanes >> 8) & 255, 0),
        tl.sum((lanes >> 16) & 255, 0),
        tl.sum((lanes >> 24) & 255, 0),
    )


@triton.jit
def _border_of(scores, stride, row, vocabulary, top_k, low, high, BLOCK: tl.constexpr):
    """A score that the `top_k` largest reach, with how many do, and a higher one that fewer reach, likewise.

    Either no more than `top_k` reach the first, or what lies between the two is one and the same score.
    """
    fewer = tl.full([], 0, tl.int32)
    reached = tl.full([], 0, tl.int32)
    passes = tl.full([], 0, tl.int32)
    while passes < _MOST_PASSES:
        was_low, was_high = low, high
        quarter = low + (high - low) * 0.25
        half = low + (high - low) * 0.5
        rest = low + (high - low) * 0.75
        from_low, from_quarter, from_half, from_rest = _counts_from(
            scores, stride, row, vocabulary, low, quarter, half, rest, BLOCK
        )
        high = tl.where(from_rest < top_k, rest, high)
        fewer = tl.where(from_rest < top_k, from_rest, fewer)
        high = tl.where(from_half < top_k, half, high)
        fewer = tl.where(from_half < top_k, from_half, fewer)
        high = tl.where(from_quarter < top_k, quarter, high)
        fewer = tl.where(from_quarter < top_k, from_quarter, fewer)
        low = tl.where(from_quarter >= top_k, quarter, low)
        reached = tl.where(from_quarter >= top_k, from_quarter, from_low)
        low = tl.where(from_half >= top_k, half, low)
        reached = tl.where(from_half >= top_k, from_half, reached)
        low = tl.where(from_rest >= top_k, rest, low)
        reached = tl.where(from_rest >= top_k, from_rest, reached)
        is_found = (reached <= top_k) | ((low == was_low) & (high == was_high))
        passes = tl.where(is_found, _MOST_PASSES, passes + 1)
    return low, reached, high, fewer


@triton.jit
def _weight_from(scores, stride, row, vocabulary, border, peak, temperature, BLOCK: tl.constexpr):
    lanes = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocabulary, BLOCK):
        found = load_scores(scores, stride, row, start + tl.arange(0, BLOCK), vocabulary)
        lanes += tl.where(found >= border, tl.exp((found - peak) / temperature), 0.0)
    return tl.sum(lanes, 0)


@triton.jit(do_not_specialize_on_alignment=SLICES)
def find_top_k(
    scores,
    stride,
    vocabulary,
    slots,
    settings,
    peaks,
    borders,
    kept_weights,
    BLOCK: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
):
    """The score that a row's top_k tokens reach (of equals there, more than these do), and their weight."""
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    temperature = number(settings, slot, TEMPERATURE)
    top_k = whole_word(settings, slot, TOP_K)
    peak = peak_of(peaks, row, vocabulary, PART, PARTS)
    if (temperature > 0) & (top_k > 0) & (tl.abs(peak) < _INFINITY):
        reach = temperature * (_NEGLIGIBLE_NATS + tl.log(vocabulary.to(tl.float32)))
        lowest = tl.maximum(peak - reach, -1e38)
        above_peak = peak + tl.abs(peak) * 1e-6 + 1e-30
        low, reached, high, fewer = _border_of(
            scores, stride, row, vocabulary, top_k, lowest, above_peak, BLOCK
        )
        if number(settings, slot, TOP_P) < 1:
            has_equals = reached > top_k
            border = tl.where(has_equals, high, low)
            weight = _weight_from(scores, stride, row, vocabulary, border, peak, temperature, BLOCK)
            equals = (top_k - fewer).to(tl.float32) * tl.exp((low - peak) / temperature)
            tl.store(kept_weights + row, weight + tl.where(has_equals, equals, 0.0))
        tl.store(borders + row, low)


@triton.jit
def _draw_above(
    scores,
    stride,
    row,
    vocabulary,
    settings,
    slot,
    position,
    peak,
    temperature,
    score,
    token,
    BLOCK: tl.constexpr,
):
    """The token that noise picks from those above a place in the order."""
    keys = tl.full([BLOCK], -_INFINITY, tl.float32)
    best = tl.full([BLOCK], 0, tl.int32) + vocabulary
    for start in range(0, vocabulary, BLOCK):
        places = start + tl.arange(0, BLOCK)
        found = load_scores(scores, stride, row, places, vocabulary)
        sums = (found - peak) / temperature + noise(settings, slot, position, places)
        is_better = _is_above(found, places, score, token) & (sums > keys)
        keys = tl.where(is_better, sums, keys)
        best = tl.where(is_better, places, best)
    return tl.min(tl.where(keys == tl.max(keys, 0), best, vocabulary), 0)


@triton.jit
def _weigh_above(scores, stride, row, vocabulary, peak, temperature, score, token, BLOCK: tl.constexpr):
    weights = tl.zeros([BLOCK], tl.float32)
    counts = tl.zeros([BLOCK], tl.int32)
    for start in range(0, vocabulary, BLOCK):
        places = start + tl.arange(0, BLOCK)
        found = load_scores(scores, stride, row, places, vocabulary)
        above = _is_above(found, places, score, token)
        weights += tl.where(above, tl.exp((found - peak) / temperature), 0.0)
        counts += above.to(tl.int32)
    return tl.sum(weights, 0), tl.sum(counts, 0)


@triton.jit
def _is_kept(weight_above, count_above, top_k, top_p, whole):
    is_within = (weight_above < top_p * whole) | (top_p >= 1)
    return (count_above == 0) | (is_within & (count_above < top_k))


@triton.jit(do_not_specialize_on_alignment=SLICES)
def settle(
    scores,
    stride,
    vocabulary,
    slots,
    positions,
    settings,
    counts,
    peaks,
    keys,
    ids,
    raw_peaks,
    weights,
    weights_above,
    counts_above,
    borders,
    kept_weights,
    tokens,
    last_tokens,
    BLOCK: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
):
    """One row's token, drawn again until it is one of those that are kept."""
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    temperature = number(settings, slot, TEMPERATURE)
    peak, token = best_of_parts(peaks, keys, ids, row, temperature, vocabulary, PART, PARTS)
    raw_peak = peak_of(raw_peaks, row, vocabulary, PART, PARTS)
    if _is_limited(settings, slot) & (tl.abs(peak) < _INFINITY):
        top_k = whole_word(settings, slot, TOP_K)
        top_p = number(settings, slot, TOP_P)
        position = tl.load(positions + row)
        parts = tl.arange(0, PARTS)
        exists = parts * PART < vocabulary
        place = row * PARTS + parts
        whole = tl.sum(tl.load(weights + place, mask=exists, other=0.0), 0)
        weight_above = tl.sum(tl.load(weights_above + place, mask=exists, other=0.0), 0)
        count_above = tl.sum(tl.load(counts_above + place, mask=exists, other=0), 0)
        border = tl.full([], -_INFINITY, tl.float32)
        if top_k > 0:
            border = tl.load(borders + row)
            if top_p < 1:
                whole = tl.load(kept_weights + row)
        top_k = tl.where(top_k > 0, top_k, vocabulary)
        is_kept = _is_kept(weight_above, count_above, top_k, top_p, whole)
        while is_kept == 0:
            score = tl.load(scores + row.to(tl.int64) * stride + token)
            token = tl.where(score < border, vocabulary, token)
            score = tl.maximum(score, border)
            token = _draw_above(
                scores,
                stride,
                row,
                vocabulary,
                settings,
                slot,
                position,
                peak,
                temperature,
                score,
                token,
                BLOCK,
            )
            score = tl.load(scores + row.to(tl.int64) * stride + token)
            weight_above, count_above = _weigh_above(
                scores, stride, row, vocabulary, peak, temperature, score, token, BLOCK
            )
            is_kept = _is_kept(weight_above, count_above, top_k, top_p, whole)
    hand_out(token, row, slot, peak, raw_peak, settings, counts, vocabulary, tokens, last_tokens)
