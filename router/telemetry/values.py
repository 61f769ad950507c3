"""Counters, gauges and histograms of one event loop: no locks, and text is made only when somebody asks.

prometheus-client's own take a lock for each number they change, several for each observation.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

Child = TypeVar("Child")


class Value:
    """One number."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        self.value += amount

    def dec(self, amount: float = 1.0) -> None:
        self.value -= amount


class Observations:
    """How many observations fell into each bucket, the last of which has no upper bound, and their sum."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def observe_each(self, values: Iterable[float]) -> None:
        counts, bounds = self.counts, self._bounds
        for value in values:
            counts[bisect_left(bounds, value)] += 1
            self.total += value


class Family(Collector, Generic[Child]):
    """One metric with its labels; a child for each set of their values."""

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        registry: CollectorRegistry,
        new_child: Callable[[], Child],
    ) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._new_child = new_child
        self._children: dict[tuple[str, ...], Child] = {}
        registry.register(self)

    def labels(self, *values: str) -> Child:
        child = self._children.get(values)
        if child is None:
            if len(values) != len(self._labels):
                raise ValueError(f"{self._name} has the labels {', '.join(self._labels)}")
            child = self._children[values] = self._new_child()
        return child

    def items(self) -> list[tuple[tuple[str, ...], Child]]:
        return list(self._children.items())


class Counter(Family[Value]):
    def __init__(self, name: str, text: str, labels: Sequence[str], registry: CollectorRegistry) -> None:
        super().__init__(name, text, labels, registry, Value)

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for values, child in self.items():
            family.add_metric(values, child.value)
        yield family


class Gauge(Family[Value]):
    def __init__(self, name: str, text: str, labels: Sequence[str], registry: CollectorRegistry) -> None:
        super().__init__(name, text, labels, registry, Value)

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(self._name, self._text, labels=self._labels)
        for values, child in self.items():
            family.add_metric(values, child.value)
        yield family


class Histogram(Family[Observations]):
    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        buckets: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self.bounds = buckets
        self._bounds = [*map(str, buckets), "+Inf"]
        super().__init__(name, text, labels, registry, lambda: Observations(buckets))

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for values, child in self.items():
            buckets = list(zip(self._bounds, map(float, accumulate(child.counts)), strict=True))
            family.add_metric(values, buckets, child.total)
        yield family
