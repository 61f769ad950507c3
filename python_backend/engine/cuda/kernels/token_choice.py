"""The likeliest or the drawn token of each row: every row in parts, then the best of its parts.

A token is drawn by adding noise to its scaled score and taking the largest sum (Gumbel's way). The noise is a
hash of the sequence's seed, the place in the answer and the token, so that what is drawn depends on nothing
else. A part measures its sums from its own peak and the parts are compared at the row's: one pass over the
scores is enough, and no temperature is too cold for fp32.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Codes in the place of a token: the largest logit is no finite number; everything is forbidden.
NOT_NUMBERS = -1
NOTHING_LEFT = -2

# The row of settings that each slot has, of which some words are fp32.
WORDS = 8
_WORDS = tl.constexpr(WORDS)
TEMPERATURE = tl.constexpr(0)  # 0: greedy
TOP_P = tl.constexpr(1)  # 1: all
TOP_K = tl.constexpr(2)  # 0: all
REPETITION = tl.constexpr(3)
PRESENCE = tl.constexpr(4)
FREQUENCY = tl.constexpr(5)
SEED_LOW = tl.constexpr(6)
SEED_HIGH = tl.constexpr(7)

_NOT_NUMBERS = tl.constexpr(NOT_NUMBERS)
_NOTHING_LEFT = tl.constexpr(NOTHING_LEFT)
_INFINITY = tl.constexpr(float("inf"))

# Slices may begin anywhere, and an address that is no multiple of 16 must not mean compiling again.
SLICES = ["slots", "positions", "last_tokens", "tokens"]


@triton.jit
def whole_word(settings, slot, WORD: tl.constexpr):
    return tl.load(settings + slot * _WORDS + WORD)


@triton.jit
def number(settings, slot, WORD: tl.constexpr):
    return whole_word(settings, slot, WORD).to(tl.float32, bitcast=True)


@triton.jit
def is_penalized(settings, slot):
    weighs = (number(settings, slot, PRESENCE) != 0) | (number(settings, slot, FREQUENCY) != 0)
    return weighs | (number(settings, slot, REPETITION) != 1)


@triton.jit
def load_scores(scores, stride, row, ids, vocabulary):
    """What is no number counts as infinite, so that a maximum finds it."""
    found = tl.load(scores + row.to(tl.int64) * stride + ids, mask=ids < vocabulary, other=-_INFINITY)
    return tl.where(found == found, found, _INFINITY)


@triton.jit
def _stirred(x):
    """Murmur3's finisher."""
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def noise(settings, slot, position, ids):
    """Gumbel's distribution: -log(e), e exponential; small e decide, so they keep all bits of the hash."""
    low = whole_word(settings, slot, SEED_LOW).to(tl.uint32, bitcast=True)
    high = whole_word(settings, slot, SEED_HIGH).to(tl.uint32, bitcast=True)
    first = _stirred(low + position.to(tl.uint32) * 0x9E3779B9)
    second = _stirred(high ^ first)
    drawn = _stirred(_stirred(ids.to(tl.uint32) * 0x9E3779B9 + first) ^ second)
    chance = tl.minimum(drawn.to(tl.float32) * 2.0**-32 + 2.0**-33, 1 - 2.0**-24)
    series = chance * (1 + chance * (1 / 2 + chance * (1 / 3 + chance * (1 / 4))))
    return -tl.log(tl.where(chance < 2.0**-6, series, -tl.log(1 - chance)))


@triton.jit
def finite_or_zero(peak):
    return tl.where(tl.abs(peak) < _INFINITY, peak, 0.0)


@triton.jit(do_not_specialize_on_alignment=SLICES)
def survey(
    scores,
    stride,
    vocabulary,
    slots,
    positions,
    settings,
    peaks,
    keys,
    ids,
    DRAWS: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Each part's largest score, and its best token with its key: the likeliest (key 0), or the drawn one."""
    row, part = tl.program_id(0), tl.program_id(1)
    places = part * PART + tl.arange(0, PART)
    found = load_scores(scores, stride, row, places, vocabulary)
    peak = tl.max(found, 0)
    best = tl.min(tl.where(found == peak, places, vocabulary), 0)
    key = tl.full([], 0.0, tl.float32)
    if DRAWS:
        slot = tl.load(slots + row)
        temperature = number(settings, slot, TEMPERATURE)
        if temperature > 0:
            sums = (found - finite_or_zero(peak)) / temperature
            sums += noise(settings, slot, tl.load(positions + row), places)
            key = tl.max(sums, 0)
            best = tl.min(tl.where(sums == key, places, vocabulary), 0)
    tl.store(peaks + row * PARTS + part, peak)
    tl.store(keys + row * PARTS + part, key)
    tl.store(ids + row * PARTS + part, tl.minimum(best, vocabulary - 1))


@triton.jit
def peak_of(peaks, row, vocabulary, PART: tl.constexpr, PARTS: tl.constexpr):
    parts = tl.arange(0, PARTS)
    return tl.max(tl.load(peaks + row * PARTS + parts, mask=parts * PART < vocabulary, other=-_INFINITY), 0)


@triton.jit
def best_of_parts(peaks, keys, ids, row, temperature, vocabulary, PART: tl.constexpr, PARTS: tl.constexpr):
    """The row's peak, and the best token of all its parts."""
    parts = tl.arange(0, PARTS)
    exists = parts * PART < vocabulary
    found = tl.load(peaks + row * PARTS + parts, mask=exists, other=-_INFINITY)
    peak = tl.max(found, 0)
    depths = (found - finite_or_zero(peak)) / tl.where(temperature > 0, temperature, 1.0)
    sums = tl.load(keys + row * PARTS + parts, mask=exists, other=-_INFINITY) + depths
    lead = tl.min(tl.where(sums == tl.max(sums, 0), parts, PARTS - 1), 0)
    return peak, tl.load(ids + row * PARTS + lead)


@triton.jit
def hand_out(token, row, slot, peak, raw_peak, settings, counts, vocabulary, tokens, last_tokens):
    """Stores the row's outcome: the next step reads a token that exists, whatever the outcome."""
    token = tl.where(peak == -_INFINITY, _NOTHING_LEFT, token)
    is_number = (peak != _INFINITY) & (tl.abs(raw_peak) != _INFINITY)
    token = tl.where(is_number, token, _NOT_NUMBERS)
    tl.store(tokens + row, token)
    tl.store(last_tokens + slot, tl.maximum(token, 0))
    if (token >= 0) & is_penalized(settings, slot):
        place = counts + slot.to(tl.int64) * vocabulary + token
        tl.store(place, tl.load(place) + 2)


@triton.jit(do_not_specialize_on_alignment=SLICES)
def finish(
    vocabulary,
    slots,
    settings,
    counts,
    peaks,
    keys,
    ids,
    raw_peaks,
    tokens,
    last_tokens,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
):
    """One row's token, where neither top_k nor top_p limits it."""
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    temperature = number(settings, slot, TEMPERATURE)
    peak, token = best_of_parts(peaks, keys, ids, row, temperature, vocabulary, PART, PARTS)
    raw_peak = peak_of(raw_peaks, row, vocabulary, PART, PARTS)
    hand_out(token, row, slot, peak, raw_peak, settings, counts, vocabulary, tokens, last_tokens)
