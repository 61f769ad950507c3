"""Whether other routers are heard, as metrics; a router that shares nothing has no values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from router.sharing.exchange import Exchange


class SharingFigures(Collector):
    def __init__(self) -> None:
        self.exchange: Exchange | None = None

    def collect(self) -> Iterator[Metric]:
        reachable = GaugeMetricFamily("inflight_redis_reachable", "1 while Redis answers.")
        routers = GaugeMetricFamily(
            "inflight_other_routers", "Routers that share limits and places with this one."
        )
        if self.exchange is not None:
            reachable.add_metric((), float(self.exchange.is_reachable))
            routers.add_metric((), float(self.exchange.other_routers))
        yield reachable
        yield routers
