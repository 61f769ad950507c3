"""The natural logarithm of the share that softmax gives to a row's chosen token."""

from __future__ import annotations

import triton
import triton.language as tl

from python_backend.engine.cuda.kernels.token_choice import SLICES, finite_or_zero, load_scores

_INFINITY = tl.constexpr(float("inf"))


@triton.jit
def part_sums(scores, stride, vocabulary, sources, peaks, sums, PART: tl.constexpr, PARTS: tl.constexpr):
    """Each part's largest score and the sum of its exponentials, as seen from there."""
    entry, part = tl.program_id(0), tl.program_id(1)
    row = tl.load(sources + entry)
    found = load_scores(scores, stride, row, part * PART + tl.arange(0, PART), vocabulary)
    peak = tl.max(found, 0)
    tl.store(peaks + entry * PARTS + part, peak)
    tl.store(sums + entry * PARTS + part, tl.sum(tl.exp(found - finite_or_zero(peak)), 0))


@triton.jit(do_not_specialize_on_alignment=SLICES)
def log_probs_of(
    scores,
    stride,
    vocabulary,
    sources,
    rows,
    tokens,
    peaks,
    sums,
    log_probs,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
):
    """`rows` says whose token each of `sources` (a row of `scores`) has yielded."""
    entry = tl.program_id(0)
    row = tl.load(rows + entry)
    token = tl.load(tokens + row)
    if token >= 0:
        parts = tl.arange(0, PARTS)
        exists = parts * PART < vocabulary
        found = tl.load(peaks + entry * PARTS + parts, mask=exists, other=-_INFINITY)
        peak = tl.max(found, 0)
        shares = tl.load(sums + entry * PARTS + parts, mask=exists, other=0.0)
        whole = tl.sum(shares * tl.exp(found - peak), 0)
        source = tl.load(sources + entry).to(tl.int64)
        score = tl.load(scores + source * stride + token)
        tl.store(log_probs + row, score - peak - tl.log(whole))
