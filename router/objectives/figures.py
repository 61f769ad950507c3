"""What Prometheus is told of objectives, counted when it asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from router.objectives.metric import Metric
from router.objectives.standing import standing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric as MetricFamily

    from router.objectives.book import ObjectiveBook
    from router.objectives.monitor import ObjectiveMonitor

_LABELS = ("model", "tier", "metric")


class ObjectiveFigures(Collector):
    """Of no objectives until there is a book of them."""

    def __init__(self, monitor: ObjectiveMonitor) -> None:
        self._monitor = monitor
        self.book: ObjectiveBook | None = None

    def collect(self) -> Iterator[MetricFamily]:
        yield from self._of_now()
        yield from self._of_ever()

    def _of_now(self) -> Iterator[MetricFamily]:
        asked = GaugeMetricFamily("inflight_objective_seconds", "What 95 of 100 are to keep.", labels=_LABELS)
        measured = GaugeMetricFamily(
            "inflight_objective_measured_p95_seconds",
            "What 95 of 100 kept in the last 5 minutes, where there is an objective.",
            labels=_LABELS,
        )
        attained = GaugeMetricFamily(
            "inflight_objective_attained_ratio",
            "The part that kept the objective in the last 5 minutes.",
            labels=_LABELS,
        )
        for objective in () if self.book is None else self.book.objectives:
            for metric in Metric:
                if objective.limit_s(metric) is None:
                    continue
                found = self._monitor.measured(objective.model, objective.tier, metric)
                one = standing(objective, metric, found)
                labels = (one.model, one.tier.label, metric.value)
                asked.add_metric(labels, one.objective_s or 0.0)
                if one.p95_s is not None and one.attained is not None:
                    measured.add_metric(labels, one.p95_s)
                    attained.add_metric(labels, one.attained)
        yield from (asked, measured, attained)

    def _of_ever(self) -> Iterator[MetricFamily]:
        """A budget of missed ones is spent at some rate, which windows of their own cannot tell."""
        judged = CounterMetricFamily(
            "inflight_objective_judged", "Requests, or tokens, with an objective.", labels=_LABELS
        )
        missed = CounterMetricFamily(
            "inflight_objective_missed", "Of those, the ones that came too late.", labels=_LABELS
        )
        for model, tier, found in self._monitor.all_series():
            for metric in Metric:
                series = found.of(metric)
                if series.limit_s is not None or series.judged:
                    judged.add_metric((model, tier.label, metric.value), series.judged)
                    missed.add_metric((model, tier.label, metric.value), series.missed)
        yield from (judged, missed)
