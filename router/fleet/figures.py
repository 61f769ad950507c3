"""What Prometheus is told of the fleet, counted when it asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from router.fleet.replicas import Fleet

_RELEASE = ("model", "release")
_REPLICA = (*_RELEASE, "replica")


class FleetFigures(Collector):
    """Of no fleet until there is one."""

    def __init__(self) -> None:
        self.fleet: Fleet | None = None

    def collect(self) -> Iterator[Metric]:
        retries = CounterMetricFamily(
            "inflight_retries", "Requests sent again before their first token.", labels=_RELEASE
        )
        replays = CounterMetricFamily(
            "inflight_replays", "Answers generated again after their replica failed.", labels=_RELEASE
        )
        up = GaugeMetricFamily("inflight_replica_up", "1 while requests are sent to it.", labels=_REPLICA)
        outstanding = GaugeMetricFamily(
            "inflight_replica_outstanding_tokens", "What is under way there, as estimated.", labels=_REPLICA
        )
        sent = CounterMetricFamily(
            "inflight_replica_requests", "Requests sent to it, retries and replays too.", labels=_REPLICA
        )
        revivals = CounterMetricFamily(
            "inflight_model_revivals",
            "Triton models that were loaded again after their process died.",
            labels=_REPLICA,
        )
        for each in () if self.fleet is None else list(self.fleet.sets.values()):
            release = (each.manifest.model, str(each.manifest.version))
            retries.add_metric(release, each.retries)
            replays.add_metric(release, each.replays)
            for replica in each.replicas:
                labels = (*release, replica.name)
                up.add_metric(labels, replica.is_up)
                outstanding.add_metric(labels, replica.outstanding_tokens)
                sent.add_metric(labels, replica.begun)
                revivals.add_metric(labels, replica.revivals)
        yield from (retries, replays, up, outstanding, sent, revivals)
