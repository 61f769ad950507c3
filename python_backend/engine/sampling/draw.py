"""Drawing one token from one row of scores, without sorting the vocabulary."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# All the tokens left out together weigh less than this beside the likeliest one: what fp32 cannot tell.
_NEGLIGIBLE = 2.0**-24
# A row's k-th largest score is at least the k-th largest of the maxima of its stretches.
_STRETCH = 64
# So many candidates are sorted outright; more go into buckets, of which only two at most are sorted.
_FEW = 512
_BUCKETS_PER_NAT = 64
_BUCKETS = 32 * _BUCKETS_PER_NAT
# The last bucket holds what is negligible or forbidden; nothing is ever drawn from it.
_BUCKET_WEIGHTS = np.exp(np.arange(_BUCKETS) / -float(_BUCKETS_PER_NAT))
_BUCKET_WEIGHTS[-1] = 0.0
_UINT64 = 2**64 - 1


def chance(seed: int, index: int, position: int) -> float:
    """The number in [0, 1) drawn for one token: 53 bits of a hash (splitmix64's finisher, thrice)."""
    state = _mixed(seed & _UINT64)
    state = _mixed(state ^ index)
    state = _mixed(state ^ position)
    return (state >> 11) * 2.0**-53


def _mixed(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _UINT64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _UINT64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _UINT64
    return value ^ (value >> 31)


def draw(
    scores: NDArray[np.float32],
    peak: float,
    temperature: float,
    top_k: int,
    top_p: float,
    point: float,
    min_p: float = 0.0,
) -> int:
    """The token at `point` of the pile of shares that min_p and top_k (0: all) and top_p (1: all) leave.

    A row keeps the tokens whose share is at least `min_p` of the likeliest one's, of these its `top_k`
    likeliest (of equals the one with the lower id), and of those the fewest whose shares reach `top_p`. Their
    shares are piled up, likeliest at the bottom, and `point`, a number in [0, 1), picks one. `peak` is
    the largest score.
    """
    vocabulary = len(scores)
    lowest = peak + temperature * math.log(_NEGLIGIBLE / vocabulary)
    has_top_k = 0 < top_k < vocabulary
    if has_top_k:
        lowest = max(lowest, floor_of_top_k(scores, top_k))
    if min_p > 0:
        lowest = max(lowest, min_p_floor(peak, temperature, min_p))
    matters = scores >= np.float32(lowest)
    count = int(np.count_nonzero(matters))
    if count > vocabulary // 8 and not (has_top_k or min_p > 0) and count > _FEW:
        return _draw_from_buckets(scores, peak, temperature, top_p, point)
    ids = np.flatnonzero(matters)
    if has_top_k or count <= _FEW:
        limit = top_k if has_top_k else count
        return int(ids[_draw_sorted(scores[ids], peak, temperature, limit, top_p, point)])
    return int(ids[_draw_from_buckets(scores[ids], peak, temperature, top_p, point)])


def min_p_floor(peak: float, temperature: float, min_p: float) -> float:
    """The least score of a token that has `min_p` of the likeliest one's share."""
    return peak + temperature * math.log(min_p)


def floor_of_top_k(scores: NDArray[np.float32], top_k: int) -> float:
    """A score that the `top_k` largest reach, and few others."""
    stretches = len(scores) // _STRETCH
    if top_k <= stretches // 2:
        scores = scores[: stretches * _STRETCH].reshape(stretches, _STRETCH).max(axis=1)
    return float(np.partition(scores, len(scores) - top_k)[len(scores) - top_k])


def _draw_sorted(
    scores: NDArray[np.float32], peak: float, temperature: float, top_k: int, top_p: float, point: float
) -> int:
    order = np.argsort(-scores, kind="stable")[:top_k]
    weights = np.exp((scores[order] - np.float32(peak)) / np.float32(temperature))
    pile = np.cumsum(weights, dtype=np.float64)
    last = len(pile) - 1
    if top_p < 1:
        last = min(int(np.searchsorted(pile, top_p * pile[-1])), last)
    found = int(np.searchsorted(pile, point * pile[last], side="right"))
    return int(order[min(found, last)])


def _draw_from_buckets(
    scores: NDArray[np.float32], peak: float, temperature: float, top_p: float, point: float
) -> int:
    """As if sorted: the tokens lie in buckets by their likelihood, and only where it matters in order."""
    depth = np.float32(peak) - scores
    depth *= np.float32(_BUCKETS_PER_NAT / temperature)
    np.minimum(depth, np.float32(_BUCKETS - 1), out=depth)
    floor = np.floor(depth)
    buckets = floor.astype(np.intp)
    pile = np.cumsum(np.bincount(buckets, _within_bucket(depth - floor), _BUCKETS) * _BUCKET_WEIGHTS)

    def opened(bucket: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        members = np.flatnonzero(buckets == bucket)
        members = members[np.argsort(depth[members], kind="stable")]
        below = pile[bucket - 1] if bucket else 0.0
        return members, below + np.cumsum(np.exp(depth[members] / -float(_BUCKETS_PER_NAT)))

    height = float(pile[-1])
    if top_p < 1:
        wanted = top_p * height
        bucket = int(np.searchsorted(pile, wanted))
        _, inner = opened(bucket)
        last = min(int(np.searchsorted(inner, wanted)), len(inner) - 1)
        # Rounding must not let the last token's share reach into the next bucket.
        height = min(float(inner[last]), float(pile[bucket]))
    target = min(point * height, math.nextafter(height, 0))
    members, inner = opened(min(int(np.searchsorted(pile, target, side="right")), len(pile) - 1))
    return int(members[min(int(np.searchsorted(inner, target, side="right")), len(members) - 1)])


def _within_bucket(rest: NDArray[np.float32]) -> NDArray[np.float32]:
    """exp(-rest / _BUCKETS_PER_NAT) for a rest below 1, by four terms of its series: exact for fp32."""
    step = np.float32(-1.0 / _BUCKETS_PER_NAT)
    weights = rest * (step**3 / np.float32(6))
    for term in (step**2 / np.float32(2), step):
        weights += term
        weights *= rest
    weights += np.float32(1)
    return weights
