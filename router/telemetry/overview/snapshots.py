"""What happened between two looks, with queues and replicas as they stand, for people to read."""

from __future__ import annotations

import resource
import time
from typing import TYPE_CHECKING, Any

from router.control.objectives.standing import standing
from router.core.objective import Metric
from router.telemetry.overview.looks import Counted, TenantCounted, grown, quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from router.admission.gate import Gate
    from router.routing.models import Lineup, Published
    from router.routing.replicas import Fleet, Replica
    from router.telemetry.metrics import Metrics
    from router.telemetry.overview.looks import Look, Release

_MOST_TENANTS = 10
_MOST_TROUBLES = 10
_NOTHING = Counted()
_NO_TENANT = TenantCounted()


class Snapshots:
    """Makes them of looks, and of what the router knows of queues, engines and objectives."""

    def __init__(
        self,
        metrics: Metrics,
        published: Published,
        gates: Mapping[Release, Gate],
        fleet: Fleet,
        busy_of: Callable[[Replica], float | None] = lambda replica: None,
        wanted_of: Callable[[Release], int | None] = lambda release: None,
    ) -> None:
        self.metrics = metrics
        self._published = published
        self._gates = gates
        self._fleet = fleet
        self._busy_of = busy_of
        self._wanted_of = wanted_of

    def between(self, old: Look, new: Look) -> dict[str, Any]:
        seconds = max(new.at_s - old.at_s, 1e-3)
        return {
            "object": "now",
            "at_s": round(time.time(), 3),
            "window_s": round(seconds, 1),
            "router": {
                "cpu": round((new.cpu_s - old.cpu_s) / seconds, 4),
                "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            },
            "models": [
                self._model(each, old, new, seconds) for each in self._published.current.lineups.values()
            ],
            "tenants": self._tenants(old, new, seconds),
            "stages": _stages(old, new),
            "troubles": _troubles(old, new),
        }

    def _model(self, lineup: Lineup, old: Look, new: Look, seconds: float) -> dict[str, Any]:
        known = {str(version) for version in (*lineup.releases, *dict(lineup.split.arms))}
        judged, missed = (
            after - before
            for before, after in zip(
                old.judged.get(lineup.name, (0, 0)), new.judged.get(lineup.name, (0, 0)), strict=True
            )
        )
        return {
            "model": lineup.name,
            "goodput": 1 - missed / judged if judged else None,
            "objectives": self._objectives(lineup.name),
            "releases": [
                {"release": version, "share": lineup.split.weight_of(int(version))}
                | self._release((lineup.name, version), old, new, seconds)
                for version in sorted(known, key=int)
            ],
        }

    def _release(self, which: Release, old: Look, new: Look, seconds: float) -> dict[str, Any]:
        before, after = old.releases.get(which, _NOTHING), new.releases.get(which, _NOTHING)
        first = grown(before.first_token, after.first_token)
        between = grown(before.between_chunks, after.between_chunks)
        first_s, between_s = self.metrics.first_token.bounds, self.metrics.between_chunks.bounds
        return {
            "in_flight": int(after.in_flight),
            "requests_per_s": round((after.ended - before.ended) / seconds, 3),
            "prompt_tokens_per_s": round((after.prompt_tokens - before.prompt_tokens) / seconds, 2),
            "tokens_per_s": round((after.completion_tokens - before.completion_tokens) / seconds, 2),
            "first_token_p50_s": quantile(first_s, first, 0.5),
            "first_token_p95_s": quantile(first_s, first, 0.95),
            "inter_token_p50_s": quantile(between_s, between, 0.5),
            "inter_token_p95_s": quantile(between_s, between, 0.95),
            **self._queue(which),
            "replicas": [*self._replicas(which)],
        }

    def _queue(self, which: Release) -> dict[str, Any]:
        gate = self._gates.get(which)
        if gate is None:
            return {"waiting": {}, "kv": None, "drain_s": None, "wanted_replicas": None}
        signals = gate.signals()
        budget = signals.kv_budget_tokens
        return {
            "waiting": {tier.label: count for tier, count in signals.waiting.items()},
            "kv": signals.kv_reserved_tokens / budget if budget else None,
            "drain_s": signals.drain_s,
            "wanted_replicas": self._wanted_of(which),
        }

    def _replicas(self, which: Release) -> Iterable[dict[str, Any]]:
        for each in list(self._fleet.sets.values()):
            if (each.manifest.model, str(each.manifest.version)) != which:
                continue
            for replica in each.replicas:
                report = replica.report
                running = None if report is None else report.active - report.waiting
                yield {
                    "name": replica.name,
                    "up": replica.is_up,
                    "draining": replica.is_draining,
                    "requests": replica.open_count,
                    "busy": self._busy_of(replica),
                    "running": running,
                    "batch_limit": None if report is None else report.max_batch_size,
                    "kv": None if report is None else report.used_blocks / max(report.total_blocks, 1),
                    "revivals": replica.revivals,
                }

    def _objectives(self, model: str) -> list[dict[str, Any]]:
        """Over five minutes, of this router."""
        found = []
        for objective in self._published.current.objectives.values():
            if objective.model != model:
                continue
            for metric in Metric:
                if objective.limit_s(metric) is not None:
                    measured = self.metrics.objectives.measured(model, objective.tier, metric)
                    one = standing(objective, metric, measured)
                    found.append(
                        {
                            "tier": one.tier.label,
                            "metric": metric.value,
                            "objective_s": one.objective_s,
                            "p95_s": one.p95_s,
                            "attained": one.attained,
                            "samples": one.samples,
                            "verdict": one.verdict.value,
                        }
                    )
        return found

    def _tenants(self, old: Look, new: Look, seconds: float) -> list[dict[str, Any]]:
        """Those that use most; who is noisy is among them whatever it uses."""
        noisy: dict[str, float] = {}
        for gate in list(self._gates.values()):
            loud = gate.signals().noisy
            if loud is not None:
                noisy[loud.tenant] = max(loud.times_over, noisy.get(loud.tenant, 0.0))
        found: list[dict[str, Any]] = []
        for tenant in new.tenants.keys() | noisy.keys():
            after, before = new.tenants.get(tenant, _NO_TENANT), old.tenants.get(tenant, _NO_TENANT)
            shown: dict[str, Any] = {
                "tenant": tenant,
                "in_flight": int(after.in_flight),
                "requests_per_s": round((after.ended - before.ended) / seconds, 3),
                "tokens_per_s": round((after.tokens - before.tokens) / seconds, 2),
                "noisy": noisy.get(tenant),
            }
            if shown["in_flight"] or shown["requests_per_s"] or tenant in noisy:
                found.append(shown)
        found.sort(key=lambda each: (each["noisy"] is None, -each["tokens_per_s"], each["tenant"]))
        return found[:_MOST_TENANTS]


def _stages(old: Look, new: Look) -> list[dict[str, Any]]:
    """Where the time of the requests went that ended meanwhile."""
    spent = {}
    for stage, (total_s, count) in new.stages.items():
        before_s, before = old.stages.get(stage, (0.0, 0))
        if count > before:
            spent[stage] = (total_s - before_s, count - before)
    whole_s = sum(seconds for seconds, _ in spent.values()) or 1.0
    return [
        {"stage": stage, "mean_s": seconds / count, "part": seconds / whole_s}
        for stage, (seconds, count) in spent.items()
    ]


def _troubles(old: Look, new: Look) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"status": int(status), "route": route, "count": round(count - old.troubles.get((status, route), 0))}
        for (status, route), count in new.troubles.items()
        if count > old.troubles.get((status, route), 0)
    ]
    return sorted(found, key=lambda each: -each["count"])[:_MOST_TROUBLES]
