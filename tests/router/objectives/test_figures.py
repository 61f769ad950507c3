from __future__ import annotations

import pytest

from python_backend.wire.tiers import Tier
from router.metrics import Metrics
from router.objectives.book import ObjectiveBook
from router.objectives.metric import Metric
from router.objectives.office import ObjectiveOffice
from router.store.access import StoreAccess
from router.store.database import Store
from router.tenancy.rbac import SYSTEM
from tests.router.rollouts.values import MODEL, manifest, office


async def test_prometheus_is_told_what_is_asked_beside_what_is_measured(
    lite: Store, access: StoreAccess
) -> None:
    office(lite).add(manifest())
    wanted = {Metric.FIRST_TOKEN: 0.5, Metric.INTER_TOKEN: 0.05}
    ObjectiveOffice(lite, SYSTEM).set(MODEL, [Tier.STANDARD], wanted)
    book, metrics = ObjectiveBook(access), Metrics()
    await book.refresh()
    metrics.watch_objectives(book)
    for took_s in (0.4, 0.4, 0.4, 2.0):
        metrics.objectives.first_token(MODEL, Tier.STANDARD, took_s)
    metrics.objectives.first_token(MODEL, Tier.BATCH, 0.4)

    def value(name: str, metric: str, tier: str = "standard") -> float | None:
        labels = {"model": MODEL, "tier": tier, "metric": metric}
        return metrics.registry.get_sample_value(name, labels)

    assert value("inflight_objective_seconds", "first_token") == 0.5
    assert value("inflight_objective_seconds", "inter_token") == 0.05
    assert value("inflight_objective_seconds", "end_to_end") is None
    assert value("inflight_objective_measured_p95_seconds", "first_token") == pytest.approx(2.0, rel=0.03)
    assert value("inflight_objective_attained_ratio", "first_token") == 0.75
    assert value("inflight_objective_attained_ratio", "inter_token") is None, "nothing was measured"
    assert value("inflight_objective_seconds", "first_token", "batch") is None, "nothing is asked"
