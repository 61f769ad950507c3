"""The evidence against a canary: sequential tests that are valid after every request.

Each is an e-value, a bet against "the canary is as good as it must be" that starts with a stake of 1. While
the canary is good the stake does not grow on average, whenever one looks; so it reaches 1 / alpha with a
probability of at most alpha over the whole life of the canary. Hence no sample size is fixed beforehand, and
frequent checks do not make rollouts flap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Spread:
    """Count, mean and sum of squared distances of numbers that came one by one (Welford)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def with_one(self, value: float) -> Spread:
        count = self.count + 1
        mean = self.mean + (value - self.mean) / count
        return Spread(count, mean, self.squares + (value - self.mean) * (value - mean))

    @property
    def variance(self) -> float:
        return self.squares / (self.count - 1) if self.count > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Pair:
    """Both arms within one stretch of time, in which they shared the load of the machine."""

    canary: Spread
    stable: Spread

    @property
    def difference(self) -> float:
        return self.canary.mean - self.stable.mean

    @property
    def noise(self) -> float:
        """The variance of the difference, in units of the variance of one request."""
        return 1 / self.canary.count + 1 / self.stable.count


# Beyond so many requests a stretch does not count for more: they were not independent of one another.
_MOST_WORTH = 10
# How large a shift is bet on, as the variance of its ratio to the scatter of the stretches.
_EFFECT = 10.0
_LEAST_DEVIATION = 0.05
# A slow phase may last for so many stretches more.
_LAGS = 3


def mean_difference(pairs: Sequence[Pair]) -> float:
    """What the stretches say together; 0 where there are none."""
    weights = [_weight(pair) for pair in pairs]
    weighed = sum(weight * pair.difference for weight, pair in zip(weights, pairs, strict=True))
    return weighed / sum(weights) if weights else 0.0


def log_evidence_of_shift(pairs: Sequence[Pair], allowed: float) -> float:
    """Against "the canary's mean is at most `allowed` above the stable one's", of values on a log scale.

    A t-test of the differences, one for each stretch of time, in the form that may be looked at all the time
    (the Bayes factor for a normal prior on the effect). Load that comes and goes shifts both sides of a pair
    and cancels; what makes the requests of a stretch alike, or a few stretches in a row, widens the scatter
    of the differences. Fewer than five stretches can never be enough.
    """
    excess = mean_difference(pairs) - allowed
    weights = [_weight(pair) for pair in pairs]
    if len(pairs) < 2 or excess <= 0:
        return 0.0
    count = sum(weights) ** 2 / sum(weight * weight for weight in weights)
    if count <= 1:
        return 0.0
    rests = [
        weight * (pair.difference - allowed - excess) for weight, pair in zip(weights, pairs, strict=True)
    ]
    within = sum(weight * weight * pair.noise for weight, pair in zip(weights, pairs, strict=True))
    variance = max(_scatter(rests) * count / (count - 1), within * _variance_within(pairs))
    t_squared = (excess * sum(weights)) ** 2 / variance / (count - 1)
    shrunk = 1 + count * _EFFECT
    return count / 2 * math.log((1 + t_squared) / (1 + t_squared / shrunk)) - math.log(shrunk) / 2


def _weight(pair: Pair) -> float:
    return 1 / (pair.noise + 1 / _MOST_WORTH)


def _scatter(rests: Sequence[float]) -> float:
    """The sum of squares, with that of neighbours where they go together (Newey and West)."""
    alone = together = sum(rest * rest for rest in rests)
    for lag in range(1, _LAGS + 1):
        products = sum(rests[place] * rests[place - lag] for place in range(lag, len(rests)))
        together += 2 * (1 - lag / (_LAGS + 1)) * products
    return max(alone, together)


def _variance_within(pairs: Sequence[Pair]) -> float:
    """Of one request, as far as stretches with several tell."""
    squares = sum(pair.canary.squares + pair.stable.squares for pair in pairs)
    freedom = sum(pair.canary.count + pair.stable.count - 2 for pair in pairs)
    return max(squares / freedom if freedom else 0.0, _LEAST_DEVIATION**2)


def _logit(rate: float) -> float:
    return math.log(rate / (1 - rate))


def _sigmoid(odds: float) -> float:
    return 1 / (1 + math.exp(-odds))


def _log_mean(logs: list[float]) -> float:
    most = max(logs)
    return most + math.log(sum(math.exp(each - most) for each in logs) / len(logs))
