"""What became of spans, as metrics; there only while requests are traced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from router.telemetry.tracing.otlp import OtlpOutlet


class TraceFigures(Collector):
    def __init__(self, outlet: OtlpOutlet) -> None:
        self._outlet = outlet

    def collect(self) -> Iterator[Metric]:
        counts = self._outlet.counts
        yield CounterMetricFamily("inflight_spans_sent", "Spans that the collector took.", value=counts.sent)
        dropped = CounterMetricFamily(
            "inflight_spans_dropped",
            "Spans that no collector got: queue_full, or export_failed.",
            labels=("reason",),
        )
        dropped.add_metric(("queue_full",), self._outlet.dropped)
        dropped.add_metric(("export_failed",), counts.failed)
        yield dropped
