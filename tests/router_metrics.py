"""All metrics of a router that has seen nothing yet."""

from __future__ import annotations

from typing import Any

from router.answer_cache.cached_requests import CachedRequests
from router.answer_cache.kept_answers import KeptAnswers
from router.cascade.cascaded_requests import CascadedRequests
from router.control.scaling.wanted import WantedReplicas
from router.request.aside import Aside
from router.routing.models import Published
from router.routing.replicas import Fleet
from router.telemetry.admission import AdmissionMetrics
from router.telemetry.collectors import (
    AnswerCacheMetrics,
    BatchMetrics,
    CascadeMetrics,
    FleetMetrics,
    ObjectiveMetrics,
    PeerMetrics,
    ReleaseMetrics,
    TenancyMetrics,
)
from router.telemetry.metrics import Metrics


class Nothing:
    """A tuner without models, a tenancy without usage, gates without releases."""

    bytes = pending = 0
    is_well = True

    @property
    def spool(self) -> Nothing:
        return self

    @property
    def worker(self) -> Nothing:
        return self

    def values(self) -> list[Any]:
        return []

    def delays(self) -> list[Any]:
        return []

    def totals(self) -> list[Any]:
        return []


def router_metrics() -> Metrics:
    metrics, published, nothing = Metrics(), Published(), Nothing()
    metrics.expose(
        TenancyMetrics(nothing),  # type: ignore[arg-type]  # that is all it looks at
        FleetMetrics(Fleet([])),
        AdmissionMetrics(nothing, Fleet([]), WantedReplicas(nothing)),  # type: ignore[arg-type]
        ObjectiveMetrics(metrics.objectives, published),
        ReleaseMetrics(published),
        BatchMetrics(nothing),  # type: ignore[arg-type]  # that is all it looks at
        PeerMetrics(None),
        AnswerCacheMetrics(CachedRequests(KeptAnswers(1), nothing, published, 0, Aside())),  # type: ignore[arg-type]
        CascadeMetrics(CascadedRequests([], Aside())),
    )
    return metrics
