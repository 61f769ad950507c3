"""What a metrics page said at one moment, and what happened between two of them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Labels = Mapping[str, str]


@dataclass(frozen=True)
class Scrape:
    """`at_s` is wall-clock time; samples are by their whole names, with `_total`, `_bucket` and the like."""

    at_s: float
    samples: Mapping[str, Sequence[tuple[Labels, float]]]

    def each(self, name: str, **labels: str) -> Iterator[tuple[Labels, float]]:
        """Those that have these labels, whatever others they have."""
        for found, value in self.samples.get(name, ()):
            if all(found.get(key) == wanted for key, wanted in labels.items()):
                yield found, value

    def value(self, name: str, **labels: str) -> float | None:
        """Their sum; None where there are none."""
        values = [value for _, value in self.each(name, **labels)]
        return sum(values) if values else None

    def label_values(self, name: str, *labels: str) -> set[tuple[str, ...]]:
        return {tuple(found.get(label, "") for label in labels) for found, _ in self.each(name)}


def read_scrape(text: str, at_s: float) -> Scrape:
    """Raises ValueError for what is no metrics page."""
    samples: dict[str, list[tuple[Labels, float]]] = defaultdict(list)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples[sample.name].append((sample.labels, sample.value))
    if not samples:
        raise ValueError("there are no metrics in it")
    return Scrape(at_s, samples)


@dataclass(frozen=True)
class ScrapeDelta:
    """From `old` to `new`; both are of the same page."""

    old: Scrape
    new: Scrape

    @property
    def seconds(self) -> float:
        return max(self.new.at_s - self.old.at_s, 1e-9)

    def grown(self, name: str, **labels: str) -> float:
        """By how much counters went up; one that begins anew, with its process, counts from 0."""
        before = {frozenset(found.items()): value for found, value in self.old.each(name, **labels)}
        grown = 0.0
        for found, value in self.new.each(name, **labels):
            former = before.get(frozenset(found.items()), 0.0)
            grown += value - former if value >= former else value
        return grown

    def rate(self, name: str, **labels: str) -> float:
        return self.grown(name, **labels) / self.seconds

    def quantile(self, histogram: str, part: float, **labels: str) -> float | None:
        """Of what was observed meanwhile; None where nothing was."""
        bounds = {found["le"] for found, _ in self.new.each(f"{histogram}_bucket", **labels)}
        counts = [
            (float(bound), self.grown(f"{histogram}_bucket", **{**labels, "le": bound})) for bound in bounds
        ]
        return quantile(sorted(counts), part)


def quantile(buckets: Sequence[tuple[float, float]], part: float) -> float | None:
    """By upper bounds and how many are not above them; within a bucket they lie evenly.

    Above the last bound that is a number nothing is known: then it is that bound.
    """
    total = buckets[-1][1] if buckets else 0.0
    if total <= 0:
        return None
    rank = part * total
    for (low, below), (high, up_to) in pairwise([(0.0, 0.0), *buckets]):
        if up_to >= rank:
            if high == inf:
                return low
            return low + (high - low) * ((rank - below) / (up_to - below) if up_to > below else 1.0)
    return None
