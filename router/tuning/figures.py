"""What Prometheus is told of batches in Triton, looked up when it asks: delays, and where time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from router.tuning.tuner import Tuner

_LABELS = ("model", "release", "triton_model")
_NS_PER_S = 1e9


class BatchFigures(Collector):
    """Of no batches until there is a tuner, which asks Triton every two seconds."""

    def __init__(self) -> None:
        self.tuner: Tuner | None = None

    def collect(self) -> Iterator[Metric]:
        delays = GaugeMetricFamily(
            "inflight_queue_delay_seconds",
            "How long Triton gathers requests to a batch at most, as loaded now.",
            labels=_LABELS,
        )
        for manifest, member, delay_ms in () if self.tuner is None else self.tuner.delays():
            delays.add_metric((manifest.model, str(manifest.version), member), delay_ms / 1000)
        yield delays
        yield from self._totals()

    def _totals(self) -> Iterator[Metric]:
        requests = _counter("requests", "Requests that Triton has answered.")
        rows = _counter("rows", "Rows in them.")
        executions = _counter("executions", "Batches in which they were computed.")
        queue = _counter("queue_seconds", "Their time in Triton's queue, that of gathering batches in it.")
        compute = _counter("compute_seconds", "Their time in the model: that of a batch for each in it.")
        for manifest, member, totals in () if self.tuner is None else self.tuner.totals():
            labels = (manifest.model, str(manifest.version), member)
            requests.add_metric(labels, totals.requests)
            rows.add_metric(labels, totals.rows)
            executions.add_metric(labels, totals.executions)
            queue.add_metric(labels, totals.queue_ns / _NS_PER_S)
            compute.add_metric(labels, totals.compute_ns / _NS_PER_S)
        yield from (requests, rows, executions, queue, compute)


def _counter(name: str, text: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"inflight_triton_{name}", text, labels=_LABELS)
