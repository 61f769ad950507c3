"""Hands spans to OpenTelemetry's SDK, which sends them over OTLP in a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING
from uuid import uuid4

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from router.telemetry.tracing.spans import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from router.core.trace import Trace, TraceContext
    from router.telemetry.tracing.spans import Span

_PATH = "/v1/traces"
_SERVICE = "inflight-router"
# About a kilobyte each. A batch is encoded while nothing else of Python runs, so it is a small one.
MOST_QUEUED = 16_384
_BATCH = 128
SEND_TIMEOUT_S = 10.0  # of one batch, what is tried again included
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_KINDS = {Kind.SERVER: SpanKind.SERVER, Kind.CLIENT: SpanKind.CLIENT, Kind.INTERNAL: SpanKind.INTERNAL}
_UNSET = Status(StatusCode.UNSET)
_SAY_AGAIN_S = 60.0


class Seldom(logging.Filter):
    """One line in a while: the SDK complains of every batch, and says the same."""

    def __init__(self) -> None:
        super().__init__()
        self._quiet_until_s = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        now_s = time.monotonic()
        if now_s < self._quiet_until_s:
            return False
        self._quiet_until_s = now_s + _SAY_AGAIN_S
        return True


logging.getLogger(OTLPSpanExporter.__module__).addFilter(Seldom())


class CountingExporter(SpanExporter):
    """Knows how many spans left, and how many could not."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self.taken = self.sent = self.failed = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            if result is SpanExportResult.SUCCESS:
                self.sent += len(spans)
            else:
                self.failed += len(spans)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class OtlpOutlet:
    """An unreachable collector costs requests nothing: what exceeds the queue is dropped."""

    def __init__(
        self,
        endpoint: str,
        headers: Mapping[str, str],
        version: str,
        delay_s: float = 1.0,
        most_queued: int = MOST_QUEUED,
        send_timeout_s: float = SEND_TIMEOUT_S,
    ) -> None:
        ids = RandomIdGenerator()
        self.new_trace_id = ids.generate_trace_id
        self.new_span_id = ids.generate_span_id
        self.dropped = 0  # because the queue was full
        self._handed = 0
        self._most_queued = most_queued
        named = {"service.name": _SERVICE, "service.version": version, "service.instance.id": str(uuid4())}
        self._resource = Resource.create(named)
        self._scope = InstrumentationScope("inflight.router", version)
        url = endpoint.rstrip("/")
        exporter = OTLPSpanExporter(
            url if url.endswith(_PATH) else url + _PATH, headers=dict(headers), timeout=send_timeout_s
        )
        self.counts = CountingExporter(exporter)
        self._processor = BatchSpanProcessor(
            self.counts,
            max_queue_size=most_queued,
            schedule_delay_millis=1000 * delay_s,
            max_export_batch_size=min(_BATCH, most_queued),
        )

    @property
    def queued(self) -> int:
        return self._handed - self.counts.taken

    def put(self, trace: Trace, spans: Sequence[Span], epoch_ns: int) -> None:
        if self.queued + len(spans) > self._most_queued:
            self.dropped += len(spans)
            return
        state = TraceState.from_header([trace.here.state]) if trace.here.state else None
        parents = {span.span_id: _context(trace.here, span.span_id, state) for span in spans}
        if trace.parent is not None:
            parents[trace.parent.span_id] = _context(trace.parent, trace.parent.span_id, state, True)
        readable = [self._readable(span, parents, epoch_ns) for span in spans]
        self._handed += len(readable)
        for span in readable:
            self._processor.on_end(span)

    def _readable(self, span: Span, contexts: Mapping[int, SpanContext], epoch_ns: int) -> ReadableSpan:
        return ReadableSpan(
            span.name,
            contexts[span.span_id],
            contexts.get(span.parent_id),
            self._resource,
            span.attributes,
            [Event(event.name, event.attributes, _ns(event.at_s, epoch_ns)) for event in span.events],
            kind=_KINDS[span.kind],
            status=Status(StatusCode.ERROR, span.error) if span.error else _UNSET,
            start_time=_ns(span.start_s, epoch_ns),
            end_time=_ns(span.end_s, epoch_ns),
            instrumentation_scope=self._scope,
        )

    def close(self, timeout_s: float) -> None:
        """Sends what is left, for no longer than that."""
        closing = threading.Thread(target=self._processor.shutdown, name="spans", daemon=True)
        closing.start()
        closing.join(timeout_s)


def _context(
    place: TraceContext, span_id: int, state: TraceState | None, is_remote: bool = False
) -> SpanContext:
    return SpanContext(place.trace_id, span_id, is_remote, _SAMPLED, state)


def _ns(monotonic_s: float, epoch_ns: int) -> int:
    return round(monotonic_s * 1e9) + epoch_ns
