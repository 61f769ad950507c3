"""The router's own Prometheus metrics."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

import prometheus_client
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector

from router.control.objectives.monitor import ObjectiveMonitor
from router.core.record import Outcome
from router.telemetry.admission import AdmissionCounters
from router.telemetry.shadow import ShadowMetrics
from router.telemetry.values import Counter, Gauge, Histogram, Observations, Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prometheus_client.registry import Collector

    from python_backend.wire.errors import ErrorKind
    from python_backend.wire.tiers import Tier
    from router.core.record import Record

_SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_LONG_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
# Stages of models that answer within milliseconds are shorter than those.
_STAGE_S = (0.0005, 0.001, 0.0025, *_LONG_S)
_WHO = ("model", "release", "tenant")
_BUSY = 503


class Ended(dict[str, Value]):
    """By outcome, each from the first request on that ends so."""

    def __init__(self, family: Counter, who: tuple[str, str, str]) -> None:
        super().__init__()
        self._family, self._who = family, who

    def __missing__(self, outcome: str) -> Value:
        found = self[outcome] = self._family.labels(outcome, *self._who)
        return found


class StageTimes(dict[str, Observations]):
    """By stage, each from the first request on that has it: no request has them all."""

    def __init__(self, family: Histogram, who: tuple[str, str, str]) -> None:
        super().__init__()
        self._family, self._who = family, who

    def __missing__(self, stage: str) -> Observations:
        found = self[stage] = self._family.labels(stage, *self._who)
        return found


class RequestMeter:
    """Of one model, release, tenant and tier, looked up once: a lookup costs more than counting."""

    __slots__ = (
        "_between_chunks",
        "_completion_tokens",
        "_duration",
        "_ended",
        "_errors",
        "_first_token",
        "_measured",
        "_model",
        "_prompt_tokens",
        "_stages",
        "in_flight",
    )

    def __init__(self, metrics: Metrics, who: tuple[str, str, str], tier: Tier) -> None:
        self.in_flight = metrics.in_flight.labels(*who)
        self._first_token = metrics.first_token.labels(*who)
        self._between_chunks = metrics.between_chunks.labels(*who)
        self._duration = metrics.duration.labels(*who)
        self._prompt_tokens = metrics.prompt_tokens.labels(*who)
        self._completion_tokens = metrics.completion_tokens.labels(*who)
        self._stages = StageTimes(metrics.stages, who)
        self._ended = Ended(metrics.ended, who)
        self._errors = metrics.triton_errors
        self._model = who[0]
        self._measured = metrics.objectives.series(self._model, tier)

    def closed(self, record: Record, now_s: float) -> None:
        self.in_flight.value -= 1
        took_s = now_s - record.arrived_s
        self._duration.observe(took_s)
        stages = self._stages
        for stage, start_s, end_s in record.marks(now_s):
            stages[stage].observe(end_s - start_s)
        self._prompt_tokens.value += record.prompt_tokens
        self._completion_tokens.value += record.completion_tokens
        self._ended[record.outcome].value += 1
        if record.outcome == Outcome.FINISHED.value:
            self._measured.end_to_end.note(took_s)

    def first_chunk(self, seconds: float) -> None:
        self._first_token.observe(seconds)

    def first_token(self, seconds: float) -> None:
        self._measured.first_token.note(seconds)

    def gaps(self, gaps: Sequence[tuple[float, int]]) -> None:
        self._between_chunks.observe_each([seconds for seconds, _ in gaps])
        # Tokens that come together have a part of the time each.
        self._measured.inter_token.note_each(
            [(seconds / tokens, tokens) for seconds, tokens in gaps if tokens]
        )

    def gap(self, seconds: float) -> None:
        self._between_chunks.observe(seconds)

    def inter_token(self, seconds: float, tokens: int) -> None:
        self._measured.inter_token.note(seconds, tokens)

    def model_failed(self, kind: ErrorKind) -> None:
        self._errors.labels(kind.label, self._model).inc()


class Metrics:
    """Label values come from the settings, never from a client, so their number is bounded."""

    def __init__(self, monitor: ObjectiveMonitor | None = None) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        registry = self.registry
        self.requests = Counter(
            "inflight_requests", "Requests answered.", ("route", "status", *_WHO), registry=registry
        )
        self.ended = Counter(
            "inflight_requests_ended",
            "Accepted requests by how they ended: finished, failed, cancelled.",
            ("outcome", *_WHO),
            registry=registry,
        )
        self.in_flight = Gauge("inflight_requests_in_flight", "Accepted, not ended.", _WHO, registry=registry)
        self.first_token = Histogram(
            "inflight_time_to_first_token_seconds",
            "From arrival to the first token.",
            _WHO,
            buckets=_LONG_S,
            registry=registry,
        )
        self.between_chunks = Histogram(
            "inflight_inter_chunk_seconds",
            "Between two chunks of one answer.",
            _WHO,
            buckets=_SHORT_S,
            registry=registry,
        )
        self.duration = Histogram(
            "inflight_request_seconds",
            "From arrival to the end of an accepted request.",
            _WHO,
            buckets=_LONG_S,
            registry=registry,
        )
        self.stages = Histogram(
            "inflight_stage_seconds",
            "Of accepted requests, by stage; the stages of a request add up to its time.",
            ("stage", *_WHO),
            buckets=_STAGE_S,
            registry=registry,
        )
        self.prompt_tokens = Counter("inflight_prompt_tokens", "Tokens read.", _WHO, registry=registry)
        self.completion_tokens = Counter(
            "inflight_completion_tokens", "Tokens delivered.", _WHO, registry=registry
        )
        self.triton_errors = Counter(
            "inflight_triton_errors",
            "Errors Triton or the engine gave.",
            ("kind", "model"),
            registry=registry,
        )
        self.objectives = monitor or ObjectiveMonitor()
        self.admission = AdmissionCounters(registry)
        self.shadows = ShadowMetrics(registry)
        prometheus_client.Info("inflight_build", "What runs here.", registry=registry).info(
            {"version": version("inflight")}
        )
        self._meters: dict[tuple[str, str, str, Tier], RequestMeter] = {}

    def expose(self, *collectors: Collector) -> None:
        """What is looked up only when Prometheus asks."""
        for each in collectors:
            self.registry.register(each)

    def opened(self, record: Record) -> RequestMeter:
        key = (record.model, record.model_version, record.caller.organisation.id, record.tier)
        found = self._meters.get(key)
        if found is None:
            found = self._meters[key] = RequestMeter(self, key[:3], record.tier)
        found.in_flight.value += 1
        return found

    def answered(self, record: Record, status: int) -> None:
        self.requests.labels(record.route, str(status), *_who(record)).inc()
        if status == _BUSY and record.model and record.dispatched_s is None:
            self.objectives.refused(record.model, record.tier)

    def render(self) -> bytes:
        return generate_latest(self.registry)


def _who(record: Record) -> tuple[str, str, str]:
    """No release where there is no model: what was refused before a model was chosen."""
    return record.model, record.model_version if record.model else "", record.tenant
