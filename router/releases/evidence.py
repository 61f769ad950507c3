"""How much speaks against a release: tests that may be looked at after every request.

Each is an e-value, a bet against "the canary is as good as it must be" that starts with a stake of 1. While
the canary is good the stake does not grow on average, whatever moment one chooses to look; so a stake of
1 / alpha comes about with a probability of at most alpha over the whole life of the canary. That is why
nobody has to say beforehand how many requests to wait for, and why looking often does not make it flap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_GRID = 24


@dataclass(frozen=True, slots=True)
class Proportion:
    """So many of so many: errors, refusals."""

    hits: int = 0
    total: int = 0

    def with_one(self, hit: bool) -> Proportion:
        return Proportion(self.hits + hit, self.total + 1)

    @property
    def cautious_rate(self) -> float:
        """One hit more than were seen: high while little is known."""
        return (self.hits + 1) / (self.total + 1)


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


def log_evidence_of_shift(canary: Spread, stable: Spread, allowed: float, floor: float = 0.05) -> float:
    """Against "the canary's mean is at most `allowed` above the stable one's", of values on a log scale.

    The difference of means is weighed as a normal one, with a variance of both arms together that is never
    taken to be smaller than `floor` squared, by a bet that is averaged over sizes of the difference.
    """
    if canary.count < 2 or stable.count < 2:
        return 0.0
    pooled = (canary.squares + stable.squares) / (canary.count + stable.count - 2)
    variance = max(pooled, floor * floor) * (1 / canary.count + 1 / stable.count)
    excess = canary.mean - stable.mean - allowed
    if excess <= 0:
        return 0.0
    # A one-sided normal mixture over effects of about half an e-fold.
    prior = 0.25
    ratio = variance / (variance + prior)
    return 0.5 * math.log(ratio) + excess * excess / (2 * variance) * (1 - ratio)


def _logit(rate: float) -> float:
    return math.log(rate / (1 - rate))


def _sigmoid(odds: float) -> float:
    return 1 / (1 + math.exp(-odds))


def _log_mean(logs: list[float]) -> float:
    most = max(logs)
    return most + math.log(sum(math.exp(each - most) for each in logs) / len(logs))
