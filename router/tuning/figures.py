"""What Prometheus is told of queue delays, looked up when it asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from router.tuning.tuner import Tuner


class DelayFigures(Collector):
    """Of no delays until there is a tuner."""

    def __init__(self) -> None:
        self.tuner: Tuner | None = None

    def collect(self) -> Iterator[Metric]:
        delays = GaugeMetricFamily(
            "inflight_queue_delay_seconds",
            "How long Triton gathers requests to a batch at most, as loaded now.",
            labels=("model", "release", "triton_model"),
        )
        for manifest, member, delay_ms in () if self.tuner is None else self.tuner.delays():
            delays.add_metric((manifest.model, str(manifest.version), member), delay_ms / 1000)
        yield delays
