from __future__ import annotations

import logging
import math
import socket

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from router.core.trace import Trace, TraceContext
from router.telemetry.tracing.otlp import OtlpOutlet, Seldom
from router.telemetry.tracing.setup import TraceMetrics
from router.telemetry.tracing.spans import Span
from tests.fakes.collector import collecting
from tests.pace import patience
from tests.waiting import wait_until


def put(outlet: OtlpOutlet, count: int = 1) -> None:
    """The spans of one request."""
    trace = Trace("GET", {}, TraceContext(outlet.new_trace_id(), outlet.new_span_id(), True))
    spans = [Span("GET", trace.here.span_id, 0, 1.0, 2.0)]
    spans += [Span("stage", outlet.new_span_id(), trace.here.span_id, 1.0, 2.0) for _ in range(count - 1)]
    outlet.put(trace, spans, 10**18)


def figures(outlet: OtlpOutlet) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(TraceMetrics(outlet))
    lines = generate_latest(registry).decode().splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line[0] != "#"}


def sent_and_dropped(outlet: OtlpOutlet) -> tuple[float, float, float]:
    told = figures(outlet)
    return (
        told["inflight_spans_sent_total"],
        told['inflight_spans_dropped_total{reason="queue_full"}'],
        told['inflight_spans_dropped_total{reason="export_failed"}'],
    )


def test_queued_spans_are_sent_on_close() -> None:
    with collecting() as collector:
        outlet = OtlpOutlet(f"{collector.url}/", {}, "1", delay_s=60.0)
        put(outlet, 3)
        assert outlet.queued == 3
        outlet.close(10.0)
        assert len(collector.spans) == 3
        assert sent_and_dropped(outlet) == (3, 0, 0)
        put(outlet)  # one that comes too late does no harm


def test_a_full_otlp_url_is_used_as_given() -> None:
    with collecting() as collector:
        outlet = OtlpOutlet(f"{collector.url}/v1/traces", {}, "1", delay_s=0.02)
        put(outlet)
        outlet.close(10.0)
    assert collector.paths == ["/v1/traces"]


def test_spans_beyond_the_queue_are_dropped_by_whole_requests_and_counted() -> None:
    with collecting() as collector:
        outlet = OtlpOutlet(collector.url, {}, "1", delay_s=60.0, most_queued=10)
        for _ in range(4):
            put(outlet, 3)
        assert outlet.dropped == 3
        outlet.close(10.0)
    assert len(collector.spans) == 9
    assert sent_and_dropped(outlet) == (9, 3, 0)


@pytest.mark.filterwarnings("ignore")
def test_spans_that_a_collector_refuses_are_counted() -> None:
    with collecting() as collector:
        collector.answers_with = 400
        outlet = OtlpOutlet(collector.url, {}, "1", delay_s=0.02)
        put(outlet, 2)
        wait_until(lambda: outlet.counts.failed == 2)
        assert sent_and_dropped(outlet) == (0, 0, 2)
        outlet.close(10.0)


def test_a_collector_that_never_answers_delays_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        outlet = OtlpOutlet(url, {}, "1", delay_s=0.02, send_timeout_s=patience(0.5))
        put(outlet)
        wait_until(lambda: outlet.queued == 0)  # it is on its way, for as long as the time limit
        put(outlet)
        outlet.close(0.01)
        assert outlet.counts.failed < 2, "it was waited for"
        wait_until(lambda: outlet.counts.failed == 2)


def test_invalid_spans_take_no_room_in_the_queue() -> None:
    outlet = OtlpOutlet("http://127.0.0.1:1", {}, "1", delay_s=60.0)
    trace = Trace("GET", {}, TraceContext(1, 2, True))
    with pytest.raises(OverflowError):
        outlet.put(trace, [Span("GET", 2, 0, 1.0, math.inf)], 0)
    assert outlet.queued == 0
    outlet.close(1.0)


def test_an_unreachable_collector_does_not_flood_the_log() -> None:
    record = logging.makeLogRecord({})
    seldom = Seldom()
    assert [seldom.filter(record) for _ in range(3)] == [True, False, False]


def test_spans_without_a_collector_are_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    outlet = OtlpOutlet(f"http://127.0.0.1:{port}", {}, "1", delay_s=0.02, send_timeout_s=0.2)
    put(outlet)
    wait_until(lambda: outlet.counts.failed == 1)
    outlet.close(10.0)
