from __future__ import annotations

import logging
from dataclasses import replace
from typing import cast

import pytest

from python_backend.costs.step_cost import LearnedStepCost, StepCost
from python_backend.wire.tiers import Tier
from router.admission.demand import Need, Reason
from router.admission.gates import Gates
from router.admission.judge import NoisyTenant
from router.admission.policy import FirstCome
from router.admission.signals import Load, Signals
from router.control.scaling.wanted import WantedReplicas
from router.core.manifest import Kind, Manifest
from router.core.objective import Objective
from router.core.record import Record
from router.routing.replicas import Fleet
from router.telemetry.admission import AdmissionMetrics, BusyRatio
from router.telemetry.metrics import Metrics
from router.triton.server import TritonServer
from tests.router.admission.test_capacity import REPORT

LOAD = Load(replicas=1, drain_s=0.1, risk=0.0, objective_s=1.0, offered=2000.0)
MANIFEST = Manifest("tiny", 1, Kind.TEXT, ("engine", "ensemble"), "engine")


class Told(FirstCome):
    """Says of itself what it is told to say."""

    def __init__(self) -> None:
        super().__init__()
        self.noisy: NoisyTenant | None = None

    def signals(self, now_s: float) -> Signals:
        return replace(super().signals(now_s), drain_s=2.5, noisy=self.noisy, kv_reserved_tokens=7, load=LOAD)


class Scene:
    def __init__(self) -> None:
        self.metrics = Metrics()
        self.fleet = Fleet([TritonServer("s0", "127.0.0.1:1")])
        self.replica = self.fleet.set_of(MANIFEST).replicas[0]
        self.policy = Told()
        self.gates = Gates(self.fleet, lambda: self.policy, Objective, watcher=self.metrics.admission)
        self.replica.report = REPORT
        self.gate = self.gates["tiny", "1"]
        self.wanted = WantedReplicas(self.gates)
        self.admission = AdmissionMetrics(self.gates, self.fleet, self.wanted)
        self.metrics.expose(self.admission)

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"inflight_{name}", {"model": "tiny", **labels})


def test_the_admission_signals_of_a_release_are_metrics() -> None:
    scene = Scene()
    for _ in range(9):
        scene.gate.offer(Record("test", "req", model="tiny"), Need(1, 1))
    assert scene.value("waiting_requests", release="1", tier="standard") == 1
    assert scene.value("waiting_requests", release="1", tier="batch") == 0
    assert scene.value("drain_seconds", release="1") == 2.5
    assert scene.value("objective_risk_ratio", release="1", tier="interactive") == 0
    assert scene.value("kv_reserved_tokens", release="1") == 7
    assert scene.value("kv_budget_tokens", release="1") == 1600
    scene.wanted.look()
    assert scene.value("wanted_replicas") == 4  # 2,000 units a second of 1,000 each at 70 %, and a margin


def test_refusals_and_forecasts_are_counted() -> None:
    scene = Scene()
    admission = scene.metrics.admission
    admission.refused(scene.gate, Tier.BATCH, Reason.BUSY)
    admission.refused(scene.gate, Tier.BATCH, Reason.TOO_LARGE)
    assert scene.value("refused_requests_total", tier="batch", reason="busy") == 1
    for first_token_s in (1.0, 5.0):
        record = Record("test", "req", model="tiny", arrived_s=0.0)
        turn = scene.gate.offer(record, Need(1, 1))
        turn._entry.forecast_late_s = 2.0
        turn.heard(first_token_s)
    assert scene.value("forecasts_total", release="1") == 2
    assert scene.value("forecasts_covered_total", release="1") == 1


def test_engine_reports_are_shown_by_replica() -> None:
    scene = Scene()
    of = {"release": "1", "replica": "s0"}
    assert scene.value("replica_step_cost_error_ratio", **of) == 0.02
    assert scene.value("replica_step_cost_frozen", **of) == 0
    assert scene.value("replica_batch_occupancy_ratio", **of) == 2 / 8
    assert scene.value("replica_busy_ratio", **of) is None
    scene.replica.reported_s = 1.0
    scene.admission.look()
    assert scene.value("replica_busy_ratio", **of) == 0
    scene.replica.report = None
    assert scene.value("replica_batch_occupancy_ratio", **of) is None


def test_the_busy_ratio_follows_the_engines_counter_across_restarts() -> None:
    busy = BusyRatio()
    for second in range(60):
        busy.add(int(second * 0.4e9), float(second + 1))
    assert busy.ratio == pytest.approx(0.4, abs=0.01)
    busy.add(0, 61.0)
    busy.add(0, 61.0)
    assert busy.ratio == pytest.approx(0.4, abs=0.01)


def test_a_noisy_tenant_is_logged_when_it_begins_and_when_it_stops(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    caplog.set_level(logging.INFO, "router.telemetry.admission")
    scene.policy.noisy = NoisyTenant("org-1", 0.8, 4.0, 0.0)
    scene.admission.look()
    scene.admission.look()
    assert scene.value("noisy_tenant_ratio", tenant="org-1") == 4.0
    scene.policy.noisy = None
    scene.admission.look()
    assert [record.getMessage() for record in caplog.records] == [
        "tiny: the tenant org-1 demands 4.0 times its share, 80 % of all work, while others wait",
        "tiny: the tenant org-1 no longer exceeds its share",
    ]
    assert scene.value("noisy_tenant_ratio", tenant="org-1") is None


def test_the_noisy_tenant_of_a_removed_release_is_forgotten() -> None:
    scene = Scene()
    scene.policy.noisy = NoisyTenant("org-1", 0.8, 4.0, 0.0)
    scene.admission.look()
    assert list(scene.admission._noisy) == [("tiny", "1")]
    scene.fleet.forget("tiny@1")
    scene.gates.refresh()
    scene.admission.look()
    assert scene.admission._noisy == {}


def test_a_frozen_step_cost_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    caplog.set_level(logging.INFO, "router.telemetry.admission")
    good = cast("LearnedStepCost", REPORT.learned)
    frozen = LearnedStepCost(StepCost(1, 1, 1), 500, 0.31, is_frozen=True)
    for learned in (good, frozen, frozen, good):
        scene.replica.report = replace(REPORT, learned=learned)
        scene.admission.look()
    assert [record.getMessage() for record in caplog.records] == [
        "tiny@1 on s0: predicted step times are 31 % off; the last good step cost stays in use",
        "tiny@1 on s0: predicted step times are accurate again",
    ]
