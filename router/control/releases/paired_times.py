"""Whether one release is slower than another, from times of both on the same prompts, pair by pair.

Of a pair from two releases that are equally fast it is chance which one took longer, whatever disturbs the
machine. So the logarithm of a pair's ratio lies evenly around that of the true ratio, and no more than that
is asked of it: the test is Wilcoxon's of signed ranks, exact for any noise. It is looked at up to four times
and for two measures, each time with the same small chance of a false refusal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# After so many pairs a canary that is plainly slower is known to be, and later any other.
LOOKS = (10, 16, 24, 32)
MOST_PAIRS = LOOKS[-1]
# After so many only one that seems to be slower is worth more of them: noise like this from one that is not
# comes so seldom.
_ENOUGH_PAIRS, _SEEMS_SLOWER = 16, 0.1
# From then on one that is plainly not slower need not be measured any longer.
LEAST_PAIRS = 8
_FALSE_REFUSAL = 0.001
_FALSE_ALL_CLEAR = 0.005


class Standing(str, Enum):
    OPEN = "not known yet"
    SLOWER = "slower than is allowed"
    WITHIN = "not slower than is allowed"
    UNKNOWN = "not to be told from some pairs more"


@dataclass(frozen=True, slots=True)
class PairedTimes:
    """Of one measure: what the canary and the stable release took, in seconds."""

    pairs: tuple[tuple[float, float], ...] = ()

    def plus(self, canary_s: float, stable_s: float) -> PairedTimes:
        return PairedTimes((*self.pairs, (canary_s, stable_s)))

    @property
    def canary_s(self) -> float:
        return median(canary_s for canary_s, _ in self.pairs)

    @property
    def stable_s(self) -> float:
        return median(stable_s for _, stable_s in self.pairs)

    @property
    def ratio(self) -> float:
        """How many times as long the canary takes: the typical pair's, which a few odd ones do not move."""
        return median(canary_s / stable_s for canary_s, stable_s in self.pairs)


def standing(times: PairedTimes, allowed_ratio: float, *, is_last: bool = False) -> Standing:
    """`is_last`: there will be no more pairs, however many are missing."""
    count = len(times.pairs)
    beyond = [math.log(canary_s / stable_s / allowed_ratio) for canary_s, stable_s in times.pairs]
    is_look = count in LOOKS or (is_last and count > LOOKS[0])
    if is_look and chance_of_more(beyond) <= _FALSE_REFUSAL:
        return Standing.SLOWER
    if count >= LEAST_PAIRS and chance_of_more([-each for each in beyond]) <= _FALSE_ALL_CLEAR:
        return Standing.WITHIN
    is_enough = count >= _ENOUGH_PAIRS and chance_of_more(beyond) > _SEEMS_SLOWER
    return Standing.UNKNOWN if is_enough else Standing.OPEN


def standing_of_all(
    measures: Iterable[PairedTimes], allowed_ratio: float, *, is_last: bool = False
) -> Standing:
    """Slower where one of them is; within only where all are."""
    found = {standing(each, allowed_ratio, is_last=is_last) for each in measures}
    order = (Standing.SLOWER, Standing.OPEN, Standing.UNKNOWN)
    return next((each for each in order if each in found), Standing.WITHIN)


def chance_of_more(differences: Sequence[float]) -> float:
    """How likely values that lie evenly around 0 are at least as much above it as these."""
    sizes = sorted(map(abs, differences))
    # Twice the rank, so that the mean rank of equal values is a whole number.
    ranks = {size: 2 * sizes.index(size) + sizes.count(size) + 1 for size in sizes}
    below = sum(ranks[abs(each)] for each in differences if each <= 0)
    # How many ways there are to choose signs such that the ranks below 0 add up to each sum: the coefficients
    # of a polynomial, side by side in one number. Its rest by a number of ones is the sum of all of them.
    width, ways = len(sizes) + 2, 1
    for size in sizes:
        ways += ways << width * ranks[size]
    as_much = ways & ((1 << width * (below + 1)) - 1)
    return as_much % ((1 << width) - 1) / (1 << len(sizes))
