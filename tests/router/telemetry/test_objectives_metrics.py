from __future__ import annotations

import pytest

from python_backend.wire.tiers import Tier
from router.control.objectives.commands import ObjectiveCommands
from router.control.objectives.publisher import ObjectivePublisher
from router.core.objective import Metric
from router.routing.models import Published
from router.store.database import Store, StoreAccess
from router.telemetry.collectors import ObjectiveMetrics
from router.telemetry.metrics import Metrics
from router.tenants.rbac import SYSTEM
from tests.router.control.releases.values import MODEL, manifest, office


async def test_prometheus_shows_objectives_beside_the_measurements(lite: Store, access: StoreAccess) -> None:
    office(lite).add(manifest())
    wanted = {Metric.FIRST_TOKEN: 0.5, Metric.INTER_TOKEN: 0.05}
    ObjectiveCommands(lite, SYSTEM).set(MODEL, [Tier.STANDARD], wanted)
    published, metrics = Published(), Metrics()
    await ObjectivePublisher(access, published, metrics.objectives.hold_to).refresh()
    metrics.expose(ObjectiveMetrics(metrics.objectives, published))
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


async def test_missed_objectives_are_counted_permanently(lite: Store, access: StoreAccess) -> None:
    office(lite).add(manifest())
    acts, published, metrics = ObjectiveCommands(lite, SYSTEM), Published(), Metrics()
    publisher = ObjectivePublisher(access, published, metrics.objectives.hold_to)
    metrics.expose(ObjectiveMetrics(metrics.objectives, published))

    def counted(metric: str, tier: str = "standard") -> tuple[float | None, float | None]:
        labels = {"model": MODEL, "tier": tier, "metric": metric}
        judged, missed = (f"inflight_objective_{name}_total" for name in ("judged", "missed"))
        found = metrics.registry.get_sample_value
        return found(judged, labels), found(missed, labels)

    metrics.objectives.first_token(MODEL, Tier.STANDARD, 9.0)
    assert counted("first_token") == (None, None), "nothing was asked"
    acts.set(MODEL, [Tier.STANDARD], {Metric.FIRST_TOKEN: 0.5, Metric.INTER_TOKEN: 0.05})
    await publisher.refresh()
    assert counted("first_token") == counted("inter_token") == (0, 0), "there before the first is missed"
    for took_s in (0.4, 0.5, 2.0):
        metrics.objectives.first_token(MODEL, Tier.STANDARD, took_s)
    metrics.objectives.inter_token(MODEL, Tier.STANDARD, 0.06, 4)
    metrics.objectives.first_token(MODEL, Tier.BATCH, 2.0)
    assert (counted("first_token"), counted("inter_token")) == ((3, 1), (4, 4))
    assert counted("end_to_end") == counted("first_token", "batch") == (None, None)
    acts.clear(MODEL, [Tier.STANDARD])
    await publisher.refresh()
    metrics.objectives.first_token(MODEL, Tier.STANDARD, 9.0)
    assert counted("first_token") == (3, 1), "no counter goes back, and what nobody asks for does not count"
