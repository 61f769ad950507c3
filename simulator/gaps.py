"""How long it took from token to token, counted in bins: there are millions of them."""

from __future__ import annotations

import math
from collections import Counter

_BINS_PER_E = 50  # a bin is 2 % wide
_LEAST_S = 1e-6


class Gaps:
    def __init__(self) -> None:
        self._bins: list[Counter[int]] = [Counter() for _ in range(3)]

    def add(self, tier: int, gap_s: float, count: int) -> None:
        self._bins[tier][round(_BINS_PER_E * math.log(max(gap_s, _LEAST_S)))] += count

    def merge(self, other: Gaps) -> None:
        for mine, theirs in zip(self._bins, other._bins, strict=True):
            mine.update(theirs)

    def percentile_s(self, tier: int, share: float) -> float | None:
        bins = self._bins[tier]
        wanted = share * bins.total()
        seen = 0
        for number in sorted(bins):
            seen += bins[number]
            if seen >= wanted:
                return math.exp(number / _BINS_PER_E)
        return None
