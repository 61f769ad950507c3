"""What requests do to the scores before a token is chosen: biases, penalties, bans and guides, in place."""

from __future__ import annotations

import triton
import triton.language as tl

from python_backend.engine.cuda.kernels.token_choice import (
    FREQUENCY,
    PRESENCE,
    REPETITION,
    SLICES,
    is_penalized,
    number,
)

_INFINITY = tl.constexpr(float("inf"))


@triton.jit(do_not_specialize=["entries"])
def edit(scores, stride, edits, entries, BLOCK: tl.constexpr):
    """Adds to single scores; minus infinity forbids, whatever the score is.

    `edits` is three rows: row, token id, and the bits of the number to add.
    """
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = entry < entries
    row = tl.load(edits + entry, mask=exists, other=0).to(tl.int64)
    token = tl.load(edits + entries + entry, mask=exists, other=0)
    value = tl.load(edits + 2 * entries + entry, mask=exists, other=0).to(tl.float32, bitcast=True)
    place = scores + row * stride + token
    score = tl.load(place, mask=exists, other=0.0)
    tl.store(place, tl.where(value == -_INFINITY, -_INFINITY, score + value), mask=exists)


@triton.jit(do_not_specialize_on_alignment=SLICES)
def penalize(scores, stride, vocabulary, slots, settings, counts, PART: tl.constexpr):
    """Repetition weighs on prompt and answer, presence and frequency on the answer alone.

    A count is twice how often the token came in the answer, and one more if it is in the prompt.
    """
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    if is_penalized(settings, slot):
        places = tl.program_id(1) * PART + tl.arange(0, PART)
        exists = places < vocabulary
        place = scores + row.to(tl.int64) * stride + places
        seen = tl.load(counts + slot.to(tl.int64) * vocabulary + places, mask=exists, other=0)
        score = tl.load(place, mask=exists, other=0.0)
        repetition = number(settings, slot, REPETITION)
        repeated = tl.where(score > 0, score / repetition, score * repetition)
        score = tl.where(seen > 0, repeated, score)
        weight = number(settings, slot, PRESENCE) + number(settings, slot, FREQUENCY) * (seen >> 1)
        tl.store(place, tl.where(seen > 1, score - weight, score), mask=exists & (seen > 0))


@triton.jit(do_not_specialize=["entries"])
def count_tokens(counts, vocabulary, entries_of, entries, BLOCK: tl.constexpr):
    """Three rows: slot, token id, and 1 for a token of the prompt or 2 for one of the answer."""
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(entries_of + entry, mask=entry < entries, other=0).to(tl.int64)
    token = tl.load(entries_of + entries + entry, mask=entry < entries, other=-1)
    weight = tl.load(entries_of + 2 * entries + entry, mask=entry < entries, other=0)
    exists = (token >= 0) & (token < vocabulary)
    place = counts + slot * vocabulary + token
    tl.atomic_or(place, 1, mask=exists & (weight == 1))
    tl.atomic_add(place, 2, mask=exists & (weight == 2))


@triton.jit
def forbid(scores, stride, vocabulary, rows, bits, words, PART: tl.constexpr):
    """Keeps, of each of `rows`, the tokens whose bit is set; `words` of 32 bits each a row."""
    entry = tl.program_id(0)
    row = tl.load(rows + entry).to(tl.int64)
    places = tl.program_id(1) * PART + tl.arange(0, PART)
    exists = places < vocabulary
    word = tl.load(bits + entry * words + (places >> 5), mask=exists, other=0)
    is_allowed = ((word >> (places & 31)) & 1) != 0
    place = scores + row * stride + places
    tl.store(place, tl.full([PART], -_INFINITY, tl.float32), mask=exists & (is_allowed == 0))
