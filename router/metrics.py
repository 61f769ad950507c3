"""The router's own Prometheus metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector

if TYPE_CHECKING:
    from python_backend.wire.errors import ErrorKind
    from router.record import Record

_SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_LONG_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_WHO = ("model", "tenant")


class StreamMetrics:
    """The histograms of one model and tenant, looked up once per request and not once per chunk."""

    def __init__(self, metrics: Metrics, model: str, tenant: str) -> None:
        self.first_token = metrics.first_token.labels(model, tenant)
        self.between_chunks = metrics.between_chunks.labels(model, tenant)


class Metrics:
    """Label values come from the settings, never from a client, so their number is bounded."""

    def __init__(self) -> None:
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
        self._streams: dict[tuple[str, str], StreamMetrics] = {}

    def stream(self, record: Record) -> StreamMetrics:
        key = (record.model, record.tenant)
        found = self._streams.get(key)
        if found is None:
            found = self._streams[key] = StreamMetrics(self, *key)
        return found

    def ticket_opened(self, record: Record) -> None:
        self.in_flight.labels(record.model, record.tenant).inc()

    def ticket_closed(self, record: Record, now_s: float) -> None:
        who = (record.model, record.tenant)
        self.in_flight.labels(*who).dec()
        self.ended.labels(record.outcome, *who).inc()
        self.duration.labels(*who).observe(now_s - record.arrived_s)
        self.prompt_tokens.labels(*who).inc(record.prompt_tokens)
        self.completion_tokens.labels(*who).inc(record.completion_tokens)

    def answered(self, record: Record, status: int) -> None:
        self.requests.labels(record.route, str(status), record.model, record.tenant).inc()

    def triton_failed(self, kind: ErrorKind, model: str) -> None:
        self.triton_errors.labels(kind.label, model).inc()

    def render(self) -> bytes:
        return generate_latest(self.registry)
