"""How long things took, as counts in buckets of equal ratio: small, exact to add up, 2 % fine."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, exp, log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Bucket i holds what took from LEAST_S * e^(i/PER_E) to LEAST_S * e^((i+1)/PER_E).
LEAST_S = 1e-5
PER_E = 50.0
_MOST_S = 1e6


def bucket_of(took_s: float) -> int:
    """What is no length of time at all counts as the shortest."""
    return int(log(took_s / LEAST_S) * PER_E) if LEAST_S < took_s < _MOST_S else _at_an_end(took_s)


def _at_an_end(took_s: float) -> int:
    return int(log(_MOST_S / LEAST_S) * PER_E) if took_s >= _MOST_S else 0


@dataclass(frozen=True, slots=True)
class Percentiles:
    """None where there are no samples."""

    samples: int
    p50_s: float | None
    p95_s: float | None


@dataclass(frozen=True, slots=True)
class Distribution:
    """How many samples each bucket has."""

    counts: Mapping[int, int] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        return sum(self.counts.values())

    @property
    def percentiles(self) -> Percentiles:
        return Percentiles(self.samples, self.percentile(0.5), self.percentile(0.95))

    def percentile(self, share: float) -> float | None:
        """What this share of the samples did not exceed; within a bucket they are taken to be even."""
        left = ceil(share * self.samples)
        for bucket in sorted(self.counts):
            count = self.counts[bucket]
            if count and left <= count:
                return LEAST_S * exp((bucket + max(left, 1) / count) / PER_E)
            left -= count
        return None

    def within(self, most_s: float) -> float | None:
        """The share of the samples that took so long or less."""
        total = self.samples
        if not total:
            return None
        last = bucket_of(most_s)
        below = sum(count for bucket, count in self.counts.items() if bucket < last)
        part = log(most_s / LEAST_S) * PER_E - last if most_s > LEAST_S else 0.0
        return (below + self.counts.get(last, 0) * min(max(part, 0.0), 1.0)) / total


def added_up(parts: Iterable[Mapping[int, int]]) -> Distribution:
    counts: dict[int, int] = {}
    for part in parts:
        for bucket, count in part.items():
            counts[bucket] = counts.get(bucket, 0) + count
    return Distribution(counts)
