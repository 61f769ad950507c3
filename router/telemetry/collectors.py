"""Metrics of replicas, objectives, releases, batches, tenants and peers, read when Prometheus asks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from router.control.objectives.standing import standing
from router.core.objective import Metric

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client.core import Metric as MetricFamily

    from router.answer_cache.cached_requests import CachedRequests
    from router.cascade.cascaded_requests import CascadedRequests
    from router.control.objectives.monitor import ObjectiveMonitor
    from router.control.peers.peer_sync import PeerSync
    from router.control.releases.proof import Proof
    from router.control.tuning.tuner import Tuner
    from router.routing.models import Published
    from router.routing.replicas import Fleet
    from router.tenants.tenancy import Tenancy

_RELEASE = ("model", "release")
_REPLICA = (*_RELEASE, "replica")


class FleetMetrics(Collector):
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterator[MetricFamily]:
        retries = CounterMetricFamily(
            "inflight_retries", "Requests sent again before their first token.", labels=_RELEASE
        )
        replays = CounterMetricFamily(
            "inflight_replays", "Answers generated again after their replica failed.", labels=_RELEASE
        )
        hedges = CounterMetricFamily(
            "inflight_hedges",
            "Requests also sent to a second replica because their first token was late.",
            labels=_RELEASE,
        )
        prompts = CounterMetricFamily(
            "inflight_prompts_elsewhere",
            "Prompts sent to a prefill replica.",
            labels=(*_RELEASE, "outcome"),
        )
        up = GaugeMetricFamily("inflight_replica_up", "1 while the replica gets requests.", labels=_REPLICA)
        outstanding = GaugeMetricFamily(
            "inflight_replica_outstanding_tokens",
            "Estimated tokens in flight on the replica.",
            labels=_REPLICA,
        )
        sent = CounterMetricFamily(
            "inflight_replica_requests",
            "Requests sent to the replica, including retries and replays.",
            labels=_REPLICA,
        )
        revivals = CounterMetricFamily(
            "inflight_model_revivals",
            "Triton models loaded again after their process died.",
            labels=_REPLICA,
        )
        for each in list(self._fleet.sets.values()):
            release = (each.manifest.model, str(each.manifest.version))
            retries.add_metric(release, each.retries)
            replays.add_metric(release, each.replays)
            hedges.add_metric(release, 0 if each.hedges is None else each.hedges.begun)
            prompts.add_metric((*release, "computed"), each.prompts_elsewhere)
            prompts.add_metric((*release, "lost"), each.prompts_lost)
            for replica in each.replicas:
                labels = (*release, replica.name)
                up.add_metric(labels, replica.is_up)
                outstanding.add_metric(labels, replica.outstanding_tokens)
                sent.add_metric(labels, replica.begun)
                revivals.add_metric(labels, replica.revivals)
        yield from (retries, replays, hedges, prompts, up, outstanding, sent, revivals)


_OBJECTIVE = ("model", "tier", "metric")


class ObjectiveMetrics(Collector):
    def __init__(self, monitor: ObjectiveMonitor, published: Published) -> None:
        self._monitor = monitor
        self._published = published

    def collect(self) -> Iterator[MetricFamily]:
        yield from self._current()
        yield from self._counted()

    def _current(self) -> Iterator[MetricFamily]:
        asked = GaugeMetricFamily(
            "inflight_objective_seconds", "The objective for the 95th percentile.", labels=_OBJECTIVE
        )
        measured = GaugeMetricFamily(
            "inflight_objective_measured_p95_seconds",
            "The measured 95th percentile over 5 minutes, where an objective is set.",
            labels=_OBJECTIVE,
        )
        attained = GaugeMetricFamily(
            "inflight_objective_attained_ratio",
            "Fraction that met the objective in the last 5 minutes.",
            labels=_OBJECTIVE,
        )
        for objective in self._published.current.objectives.values():
            for metric in Metric:
                if objective.limit_s(metric) is None:
                    continue
                found = self._monitor.measured(objective.model, objective.tier, metric)
                one = standing(objective, metric, found)
                labels = (one.model, one.tier.label, metric.value)
                asked.add_metric(labels, one.objective_s or 0.0)
                if one.p95_s is not None and one.attained is not None:
                    measured.add_metric(labels, one.p95_s)
                    attained.add_metric(labels, one.attained)
        yield from (asked, measured, attained)

    def _counted(self) -> Iterator[MetricFamily]:
        """Counters, for error budgets over windows of any length."""
        judged = CounterMetricFamily(
            "inflight_objective_judged", "Requests, or tokens, that have an objective.", labels=_OBJECTIVE
        )
        missed = CounterMetricFamily(
            "inflight_objective_missed",
            "Requests, or tokens, that missed their objective.",
            labels=_OBJECTIVE,
        )
        for model, tier, found in self._monitor.all_series():
            for metric in Metric:
                series = found.of(metric)
                if series.limit_s is not None or series.judged:
                    judged.add_metric((model, tier.label, metric.value), series.judged)
                    missed.add_metric((model, tier.label, metric.value), series.missed)
        yield from (judged, missed)


class ReleaseMetrics(Collector):
    def __init__(self, published: Published) -> None:
        self._published = published
        self._rollbacks: Counter[str] = Counter()
        self._proofs: Sequence[Proof] = ()

    def proved(self, proofs: Sequence[Proof]) -> None:
        """Of all canaries that are being rolled out now."""
        self._proofs = proofs

    def rolled_back(self, model: str) -> None:
        self._rollbacks[model] += 1

    def collect(self) -> Iterator[MetricFamily]:
        shares = GaugeMetricFamily(
            "inflight_release_share",
            "Share of the model's requests assigned to the release.",
            labels=_RELEASE,
        )
        steps = GaugeMetricFamily(
            "inflight_rollout_step", "Current step of a canary, counted from 1.", labels=_RELEASE
        )
        rollbacks = CounterMetricFamily(
            "inflight_rollbacks", "Automatic rollbacks of rollouts.", labels=("model",)
        )
        for model, lineup in self._published.current.lineups.items():
            split = lineup.split
            for version in sorted(lineup.releases.keys() | dict(split.arms).keys()):
                shares.add_metric((model, str(version)), split.weight_of(version))
            if split.rollout_id is not None:
                steps.add_metric((model, str(split.arms[0][0])), split.step + 1)
            rollbacks.add_metric((model,), self._rollbacks[model])
        yield from (shares, steps, rollbacks, *self._canaries())

    def _canaries(self) -> Iterator[MetricFamily]:
        slowdown = GaugeMetricFamily(
            "inflight_canary_slowdown_ratio",
            "Latency of a canary relative to the stable release, measured before it had traffic.",
            labels=(*_RELEASE, "measure"),
        )
        golden = GaugeMetricFamily(
            "inflight_canary_golden_failed_ratio",
            "Fraction of its golden prompts that a canary failed last.",
            labels=_RELEASE,
        )
        likeness = GaugeMetricFamily(
            "inflight_canary_likeness_ratio",
            "Similarity of a shadow's answers to those of the stable release.",
            labels=_RELEASE,
        )
        gates = GaugeMetricFamily(
            "inflight_canary_evidence_ratio",
            "Evidence for or against a canary, relative to what passing a check or a rollback needs.",
            labels=(*_RELEASE, "gate", "side"),
        )
        for proof in self._proofs:
            labels = (proof.model, str(proof.version))
            for gate, (within, against) in proof.gates.items():
                gates.add_metric((*labels, gate, "against"), against)
                if within is not None:
                    gates.add_metric((*labels, gate, "for"), within)
            for measure, ratio in proof.slowdowns.items():
                slowdown.add_metric((*labels, measure), ratio)
            if proof.golden_failed is not None:
                golden.add_metric(labels, proof.golden_failed)
            if proof.likeness is not None:
                likeness.add_metric(labels, proof.likeness)
        yield from (slowdown, golden, likeness, gates)


_TRITON_MODEL = ("model", "release", "triton_model")
_NS_PER_S = 1e9


class BatchMetrics(Collector):
    """As new as the tuner's last look at Triton's statistics."""

    def __init__(self, tuner: Tuner) -> None:
        self._tuner = tuner

    def collect(self) -> Iterator[MetricFamily]:
        delays = GaugeMetricFamily(
            "inflight_queue_delay_seconds",
            "Longest time Triton waits to form a batch, as currently loaded.",
            labels=_TRITON_MODEL,
        )
        for manifest, member, delay_ms in self._tuner.delays():
            delays.add_metric((manifest.model, str(manifest.version), member), delay_ms / 1000)
        yield delays
        yield from self._totals()

    def _totals(self) -> Iterator[MetricFamily]:
        requests = _counter("requests", "Requests answered by Triton.")
        rows = _counter("rows", "Rows in the answered requests.")
        executions = _counter("executions", "Batches executed by Triton.")
        queue = _counter("queue_seconds", "Time of requests in Triton's queue, including the queue delay.")
        compute = _counter(
            "compute_seconds", "Compute time of requests; each counts the time of its whole batch."
        )
        for manifest, member, totals in self._tuner.totals():
            labels = (manifest.model, str(manifest.version), member)
            requests.add_metric(labels, totals.requests)
            rows.add_metric(labels, totals.rows)
            executions.add_metric(labels, totals.executions)
            queue.add_metric(labels, totals.queue_ns / _NS_PER_S)
            compute.add_metric(labels, totals.compute_ns / _NS_PER_S)
        yield from (requests, rows, executions, queue, compute)


def _counter(name: str, text: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"inflight_triton_{name}", text, labels=_TRITON_MODEL)


class PeerMetrics(Collector):
    """Without values where limits are not shared."""

    def __init__(self, sync: PeerSync | None) -> None:
        self._sync = sync

    def collect(self) -> Iterator[MetricFamily]:
        reachable = GaugeMetricFamily("inflight_redis_reachable", "1 while Redis answers.")
        routers = GaugeMetricFamily(
            "inflight_other_routers", "Routers that share limits and slots with this one."
        )
        if self._sync is not None:
            reachable.add_metric((), float(self._sync.is_reachable))
            routers.add_metric((), float(self._sync.other_routers))
        yield reachable
        yield routers


class AnswerCacheMetrics(Collector):
    def __init__(self, cached: CachedRequests) -> None:
        self._cached = cached

    def collect(self) -> Iterator[MetricFamily]:
        asked = CounterMetricFamily(
            "inflight_cached_answers",
            "Requests that asked for a cached answer, by outcome.",
            labels=["model", "outcome"],
        )
        saved = CounterMetricFamily(
            "inflight_cached_answer_tokens",
            "Tokens of answers that came from the cache.",
            labels=["model"],
        )
        for model, counts in self._cached.counts.items():
            asked.add_metric((model, "hit"), counts.hits)
            asked.add_metric((model, "miss"), counts.misses)
            saved.add_metric((model,), counts.saved_tokens)
        size = self._cached.kept.size_bytes
        yield asked
        yield saved
        yield GaugeMetricFamily("inflight_answer_cache_bytes", "Size of the cached answers.", value=size)


class CascadeMetrics(Collector):
    def __init__(self, cascaded: CascadedRequests) -> None:
        self._cascaded = cascaded

    def collect(self) -> Iterator[MetricFamily]:
        answered = CounterMetricFamily(
            "inflight_cascade_requests",
            "Requests that named a cascade, by the model that answered and the reason.",
            labels=["cascade", "model", "reason"],
        )
        for labels, count in self._cascaded.answered.items():
            answered.add_metric(labels, count)
        yield answered
        for name, text, counts in (
            (
                "rejected_tokens",
                "Tokens of the small model's answers that were discarded.",
                self._cascaded.rejected_tokens,
            ),
            (
                "held_seconds",
                "Time spent on small models while nothing was sent to the client.",
                self._cascaded.held_s,
            ),
        ):
            family = CounterMetricFamily(f"inflight_cascade_{name}", text, labels=["cascade"])
            for cascade, value in counts.items():
                family.add_metric((cascade,), value)
            yield family


class TenancyMetrics(Collector):
    def __init__(self, tenancy: Tenancy) -> None:
        self._tenancy = tenancy

    def collect(self) -> Iterator[MetricFamily]:
        spool = self._tenancy.spool
        for name, text, value in (
            ("usage_spool_bytes", "Usage records on disk, not yet in the store.", spool.bytes),
            ("usage_pending_records", "Usage records only in memory.", spool.pending),
            ("store_reachable", "1 while the store answers.", self._tenancy.worker.is_well),
        ):
            yield GaugeMetricFamily(f"inflight_{name}", text, value=value)
