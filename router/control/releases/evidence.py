"""What two arms of a rollout show, for a canary and against it, in tests that are valid after every request.

Each is an e-value, a bet against a claim ("the canary is as good as it must be", or "it is not") that starts
with a stake of 1. While the claim holds the stake does not grow on average, whenever one looks; so it reaches
1 / alpha with a probability of at most alpha over the whole life of the canary. Hence no sample size is fixed
beforehand, and frequent checks do not make rollouts flap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import mul
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_GRID = 24


@dataclass(frozen=True, slots=True)
class Proportion:
    """k of n: errors, refusals."""

    hits: int = 0
    total: int = 0

    def with_one(self, hit: bool) -> Proportion:
        return Proportion(self.hits + hit, self.total + 1)

    @property
    def rate(self) -> float:
        return self.hits / self.total if self.total else 0.0

    @property
    def cautious_rate(self) -> float:
        """An upper estimate: one hit more than were seen, and two standard deviations of their number."""
        return (self.hits + 1 + 2 * math.sqrt(self.hits)) / (self.total + 1)


def log_evidence_of_more(canary: Proportion, allowed: float) -> float:
    """Against "the rate is at most `allowed`": the average bet over higher rates, spread evenly in odds."""
    if not canary.total or allowed >= 1:
        return 0.0
    allowed = max(allowed, 1e-6)
    misses = canary.total - canary.hits
    low, high = _logit(allowed), _logit(min(0.999, max(0.5, 2 * allowed)))
    if high <= low:
        return 0.0
    logs = []
    for step in range(_GRID):
        rate = _sigmoid(low + (high - low) * (step + 1) / _GRID)
        logs.append(canary.hits * math.log(rate / allowed) + misses * math.log((1 - rate) / (1 - allowed)))
    return _log_mean(logs)


def log_evidence_of_fewer(canary: Proportion, allowed: float) -> float:
    """Against "the rate is at least `allowed`": the average bet over lower rates, spread evenly in odds."""
    if not canary.total or not 0 < allowed < 1:
        return 0.0
    misses = canary.total - canary.hits
    low, high = _logit(allowed / 100), _logit(allowed)
    logs = []
    for step in range(_GRID):
        rate = _sigmoid(low + (high - low) * step / _GRID)
        logs.append(canary.hits * math.log(rate / allowed) + misses * math.log((1 - rate) / (1 - allowed)))
    return _log_mean(logs)


@dataclass(frozen=True, slots=True)
class Spread:
    """Moments of logarithms of what was measured, beside those of the size of the work it was measured on
    (the logarithm of a number of tokens): counts, means and sums of squares and products about the means."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    size: float = 0.0
    size_squares: float = 0.0
    products: float = 0.0

    @property
    def variance(self) -> float:
        return self.squares / (self.count - 1) if self.count > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Pair:
    """Both arms within one stretch of time, in which they shared the load of the machine."""

    canary: Spread
    stable: Spread

    def difference(self, slope: float = 0.0) -> float:
        """As if both had done work of the same size."""
        return self.canary.mean - self.stable.mean - slope * (self.canary.size - self.stable.size)

    @property
    def noise(self) -> float:
        """The variance of the difference, in units of the variance of one request."""
        return 1 / self.canary.count + 1 / self.stable.count


@dataclass(frozen=True, slots=True)
class Estimate:
    """The canary's mean less the stable release's, on a log scale, with the variance of that difference.

    `count` is the number of stretches that it comes from, as if all counted for the same.
    """

    difference: float
    variance: float
    count: float

    def after(self, times: float) -> Estimate:
        """What so many times as much of the same would give."""
        return Estimate(self.difference, self.variance / times, self.count * times)


# Beyond so many requests a stretch does not count for more: they were not independent of one another.
_MOST_WORTH = 10
# How large a shift is bet on, as the variance of its ratio to the scatter of the stretches.
_EFFECT = 1.0
_LEAST_DEVIATION = 0.05
# A slow phase may last for so many stretches more, or for a fraction of all of them.
_LEAST_LAGS = 3
_LAGS = 0.25
# Twice the tokens take at most so much longer: what scatters more than that is no effect of size.
_MOST_SLOPE = 1.2


def estimate(pairs: Sequence[Pair]) -> Estimate | None:
    """What the stretches say together; None where they are too few to say how much they scatter.

    Load that comes and goes shifts both sides of a pair and cancels; what makes the requests of a stretch
    alike, or some stretches in a row, widens the scatter of the differences. Work of different size is
    allowed for by how the times of requests go with it in either arm.
    """
    weights = [1 / (pair.noise + 1 / _MOST_WORTH) for pair in pairs]
    total = sum(weights)
    count = total**2 / sum(weight * weight for weight in weights) if pairs else 0.0
    if count <= 1:
        return None
    slope = _slope(pairs)
    differences = [pair.difference(slope) for pair in pairs]
    mean = sum(weight * each for weight, each in zip(weights, differences, strict=True)) / total
    rests = [weight * (each - mean) for weight, each in zip(weights, differences, strict=True)]
    within = sum(weight * weight * pair.noise for weight, pair in zip(weights, pairs, strict=True))
    variance = max(_scatter(rests) * count / (count - 1), within * _variance_within(pairs, slope))
    return Estimate(mean, variance / total**2, count)


def together(one: Estimate | None, other: Estimate | None) -> Estimate | None:
    """What two kinds of pairs say, of which one may scatter far less: each counts by how sure it is."""
    if one is None or other is None:
        return other if one is None else one
    precisions = 1 / one.variance, 1 / other.variance
    total = sum(precisions)
    difference = (precisions[0] * one.difference + precisions[1] * other.difference) / total
    count = total**2 / (precisions[0] ** 2 / one.count + precisions[1] ** 2 / other.count)
    return Estimate(difference, 1 / total, count)


def log_evidence_of_shift(found: Estimate, allowed: float) -> float:
    """Above 0 against "the difference is at most `allowed`", below 0 against "it is at least that".

    A t-test in the form that may be looked at all the time: the Bayes factor for a normal prior on the
    effect. Fewer than five stretches can never be enough.
    """
    excess, count = found.difference - allowed, found.count
    if count <= 1 or not excess:
        return 0.0
    t_squared = excess * excess / found.variance / (count - 1)
    shrunk = 1 + count * _EFFECT
    log = count / 2 * math.log((1 + t_squared) / (1 + t_squared / shrunk)) - math.log(shrunk) / 2
    return math.copysign(max(log, 0.0), excess)


def times_until(found: Estimate, allowed: float, limit: float, most: float = 1e4) -> float | None:
    """How many times as much of the same would show that the difference is below `allowed`."""
    if log_evidence_of_shift(found.after(most), allowed) > -limit:
        return None
    low, high = 1.0, most
    while high / low > 1.02:
        middle = math.sqrt(low * high)
        if log_evidence_of_shift(found.after(middle), allowed) > -limit:
            low = middle
        else:
            high = middle
    return high


def _slope(pairs: Sequence[Pair]) -> float:
    """How times go with sizes within the arms of a stretch, where the sizes differ enough to tell."""
    spreads = [each for pair in pairs for each in (pair.canary, pair.stable)]
    squares = sum(each.size_squares for each in spreads)
    if squares < 1:
        return 0.0
    return min(max(sum(each.products for each in spreads) / squares, 0.0), _MOST_SLOPE)


def _scatter(rests: Sequence[float]) -> float:
    """The sum of squares, with that of neighbours where they go together (Newey and West)."""
    alone = together = sum(rest * rest for rest in rests)
    lags = max(_LEAST_LAGS, int(len(rests) * _LAGS))
    for lag in range(1, lags + 1):
        together += 2 * (1 - lag / (lags + 1)) * sum(map(mul, rests[lag:], rests))
    return max(alone, together)


def _variance_within(pairs: Sequence[Pair], slope: float) -> float:
    """Of one request, as far as stretches with several tell."""
    spreads = [each for pair in pairs for each in (pair.canary, pair.stable)]
    squares = sum(each.squares - slope * (2 * each.products - slope * each.size_squares) for each in spreads)
    freedom = sum(each.count - 1 for each in spreads)
    return max(squares / freedom if freedom else 0.0, _LEAST_DEVIATION**2)


def _logit(rate: float) -> float:
    return math.log(rate / (1 - rate))


def _sigmoid(odds: float) -> float:
    return 1 / (1 + math.exp(-odds))


def _log_mean(logs: list[float]) -> float:
    most = max(logs)
    return most + math.log(sum(math.exp(each - most) for each in logs) / len(logs))
