"""Metrics and log lines of admission, and of the engines as far as it depends on them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from router.core.rounds import every
from router.telemetry.values import Counter, Value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from python_backend.wire.tiers import Tier
    from router.admission.demand import QueueEntry, Reason
    from router.admission.gate import Gate
    from router.admission.gates import Gates
    from router.control.scaling.wanted import WantedReplicas
    from router.routing.replicas import Fleet, Replica

log = logging.getLogger(__name__)

_RELEASE = ("model", "release")
_REPLICA = (*_RELEASE, "replica")
_LOOK_EVERY_S = 1.0
# How much of the newest second is in the busy ratio.
_NEWEST = 0.3


class BusyRatio:
    """The part of the time in which an engine computed, over the last few seconds."""

    def __init__(self) -> None:
        self._busy_ns = -1
        self._at_s = 0.0
        self.ratio = 0.0

    def add(self, busy_ns: int, at_s: float) -> None:
        """`busy_ns` is the engine's total at `at_s`; less than before means that it has restarted."""
        if at_s <= self._at_s:
            return
        if 0 <= self._busy_ns <= busy_ns:
            newest = min((busy_ns - self._busy_ns) / 1e9 / (at_s - self._at_s), 1.0)
            self.ratio += _NEWEST * (newest - self.ratio)
        self._busy_ns, self._at_s = busy_ns, at_s


class AdmissionCounters:
    """Counts events of the gates."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._refused = Counter(
            "inflight_refused_requests",
            "Requests refused by admission: busy (on arrival), too_late (while waiting), too_large.",
            ("model", "tier", "reason"),
            registry=registry,
        )
        self._forecasts = Counter(
            "inflight_forecasts",
            "Requests whose time to first token was predicted.",
            _RELEASE,
            registry=registry,
        )
        self._covered = Counter(
            "inflight_forecasts_covered",
            "Requests whose first token came within the predicted time.",
            _RELEASE,
            registry=registry,
        )
        self._forecasts_of: dict[tuple[str, str], tuple[Value, Value]] = {}  # by model and release

    def refused(self, gate: Gate, tier: Tier, reason: Reason) -> None:
        self._refused.labels(gate.model, tier.label, reason.value).inc()

    def heard(self, gate: Gate, entry: QueueEntry, now_s: float) -> None:
        was_covered = entry.was_covered
        if was_covered is None:
            return
        counters = self._forecasts_of.get((gate.model, gate.release))
        if counters is None:
            labels = (gate.model, gate.release)
            counters = self._forecasts.labels(*labels), self._covered.labels(*labels)
            self._forecasts_of[labels] = counters
        predicted, covered = counters
        predicted.value += 1
        covered.value += was_covered


class AdmissionMetrics(Collector):
    """Reads the state of gates and engines when Prometheus asks, and logs changes of it every second."""

    def __init__(self, gates: Gates, fleet: Fleet, wanted: WantedReplicas) -> None:
        self._gates = gates
        self._fleet = fleet
        self._wanted = wanted
        self._busy: dict[Replica, BusyRatio] = {}
        self._frozen: set[Replica] = set()
        self._noisy: dict[tuple[str, str], str] = {}

    async def run(self) -> None:
        """For as long as the router runs."""
        await every(_LOOK_EVERY_S, self.look, "the admission metrics could not be updated")

    def look(self) -> None:
        gates = list(self._gates.values())
        for gate in gates:
            self._look_for_noise(gate)
        for former in self._noisy.keys() - {(gate.model, gate.release) for gate in gates}:
            del self._noisy[former]
        replicas = list(self._replicas())
        for replica in replicas:
            self._look_at(replica)
        for gone in self._busy.keys() - set(replicas):
            del self._busy[gone]
            self._frozen.discard(gone)

    def _look_for_noise(self, gate: Gate) -> None:
        key, noisy = (gate.model, gate.release), gate.signals().noisy
        former, tenant = self._noisy.get(key, ""), "" if noisy is None else noisy.tenant
        if former and former != tenant:
            log.info("%s: the tenant %s no longer exceeds its share", gate.model, former)
        if noisy is not None and former != tenant:
            log.warning(
                "%s: the tenant %s demands %.1f times its share, %.0f %% of all work, while others wait",
                gate.model,
                tenant,
                noisy.times_over,
                100 * noisy.share,
            )
        self._noisy[key] = tenant

    def _look_at(self, replica: Replica) -> None:
        report = replica.report
        if report is None:
            return
        self._busy.setdefault(replica, BusyRatio()).add(report.busy_ns, replica.reported_s)
        learned = report.learned
        is_frozen = learned is not None and learned.is_frozen
        if learned is not None and is_frozen != (replica in self._frozen):
            if is_frozen:
                self._frozen.add(replica)
                log.warning(
                    "%r: predicted step times are %.0f %% off; the last good step cost stays in use",
                    replica,
                    100 * learned.error,
                )
            else:
                self._frozen.discard(replica)
                log.info("%r: predicted step times are accurate again", replica)

    def _replicas(self) -> Iterator[Replica]:
        for each in list(self._fleet.sets.values()):
            yield from each.replicas

    def busy_of(self, replica: Replica) -> float | None:
        """The part of the time in which it computes; None where its engine does not tell."""
        found = self._busy.get(replica)
        return None if found is None else found.ratio

    # Read by Prometheus

    def collect(self) -> Iterator[Metric]:
        yield from self._of_gates()
        yield from self._of_engines()

    def _of_gates(self) -> Iterator[Metric]:
        waiting = _gauge("waiting_requests", "Requests in the router's queue.", (*_RELEASE, "tier"))
        drain = _gauge(
            "drain_seconds", "Predicted time until all running and waiting requests are done.", _RELEASE
        )
        risk = _gauge(
            "objective_risk_ratio",
            "Fraction of requests predicted to miss their objective.",
            (*_RELEASE, "tier"),
        )
        reserved = _gauge("kv_reserved_tokens", "KV cache reserved for running requests.", _RELEASE)
        budget = _gauge("kv_budget_tokens", "KV cache that may be reserved.", _RELEASE)
        wanted = _gauge("wanted_replicas", "Replicas needed for the offered load.", ("model",))
        noise = _gauge(
            "noisy_tenant_ratio", "Demand of a tenant as a multiple of its fair share.", ("model", "tenant")
        )
        loudest: dict[tuple[str, str], float] = {}
        for gate in list(self._gates.values()):
            signals, release = gate.signals(), (gate.model, gate.release)
            for tier, count in signals.waiting.items():
                waiting.add_metric((*release, tier.label), count)
            for tier, share in signals.risk.items():
                risk.add_metric((*release, tier.label), share)
            if signals.drain_s is not None:
                drain.add_metric(release, signals.drain_s)
            reserved.add_metric(release, signals.kv_reserved_tokens)
            if signals.kv_budget_tokens is not None:
                budget.add_metric(release, signals.kv_budget_tokens)
            if signals.noisy is not None:
                who = (gate.model, signals.noisy.tenant)
                loudest[who] = max(loudest.get(who, 0.0), signals.noisy.times_over)
        for model, count in self._wanted.by_model().items():
            wanted.add_metric((model,), count)
        for who, times in loudest.items():
            noise.add_metric(who, times)
        yield from (waiting, drain, risk, reserved, budget, wanted, noise)

    def _of_engines(self) -> Iterator[Metric]:
        error = _gauge("replica_step_cost_error_ratio", "Relative error of predicted step times.", _REPLICA)
        frozen = _gauge("replica_step_cost_frozen", "1 while predictions are too wrong to be used.", _REPLICA)
        busy = _gauge("replica_busy_ratio", "Fraction of the time in which the engine computes.", _REPLICA)
        occupancy = _gauge(
            "replica_batch_occupancy_ratio", "Running sequences as a fraction of the batch limit.", _REPLICA
        )
        for replica in self._replicas():
            report = replica.report
            if report is None:
                continue
            labels = (replica.manifest.model, str(replica.manifest.version), replica.name)
            if report.learned is not None:
                error.add_metric(labels, report.learned.error)
                frozen.add_metric(labels, report.learned.is_frozen)
            if replica in self._busy:
                busy.add_metric(labels, self._busy[replica].ratio)
            running = report.active - report.waiting
            occupancy.add_metric(labels, running / max(report.max_batch_size, 1))
        yield from (error, frozen, busy, occupancy)


def _gauge(name: str, text: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"inflight_{name}", text, labels=labels)
