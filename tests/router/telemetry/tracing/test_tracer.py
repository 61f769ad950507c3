from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from router.core.record import Record
from router.core.trace import Trace
from router.telemetry.tracing.spans import Span
from router.telemetry.tracing.tracer import Tracer
from tests.router.telemetry.tracing.running import SPAN, TRACE, TRACEPARENT


class BrokenOutlet:
    """Knows ids and nothing else."""

    def new_trace_id(self) -> int:
        return 7

    def new_span_id(self) -> int:
        return 8

    def put(self, trace: Trace, spans: Sequence[Span], epoch_ns: int) -> None:
        raise RuntimeError("a bug")


def tracer(percent: float = 100.0, chance: float = 0.5) -> Tracer:
    return Tracer(BrokenOutlet(), percent, lambda: chance)


def test_a_trace_is_continued_or_begun() -> None:
    going_on = tracer().begin_http("GET", "/v1/models", {"traceparent": TRACEPARENT, "tracestate": "a=1"})
    assert going_on is not None
    assert going_on.parent is not None
    assert going_on.trace_id == TRACE
    assert going_on.here.traceparent == f"00-{TRACE}-{8:016x}-01"
    assert going_on.here.state == "a=1"
    assert f"{going_on.parent.span_id:016x}" == SPAN
    begun = tracer().begin_http("GET", "/v1/models", {})
    assert begun is not None
    assert (begun.parent, begun.here.trace_id) == (None, 7)


@pytest.mark.parametrize(("percent", "is_traced"), [(49.0, False), (51.0, True)])
def test_without_a_traceparent_chance_decides_on_sampling(percent: float, is_traced: bool) -> None:
    assert (tracer(percent).begin_rpc("ModelInfer", ()) is not None) is is_traced


def test_binary_metadata_is_skipped() -> None:
    trace = tracer().begin_rpc("ModelInfer", (("traceparent", b"x"), ("tracestate", "a=1")))
    assert trace is not None
    assert trace.parent is None


def test_repeated_metadata_is_joined_into_one_list() -> None:
    twice = tracer().begin_rpc("ModelInfer", (("traceparent", TRACEPARENT), ("traceparent", TRACEPARENT)))
    assert twice is not None
    assert twice.parent is None
    states = (("tracestate", "a=1"), ("tracestate", "b=2"))
    going_on = tracer().begin_rpc("ModelInfer", (("traceparent", TRACEPARENT), *states))
    assert going_on is not None
    assert going_on.here.state == "a=1,b=2"


def test_a_request_is_answered_whatever_happens_to_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    trace = tracer().begin_http("GET", "/v1/models", {})
    assert trace is not None
    with caplog.at_level(logging.ERROR):
        tracer().end(trace, Record("/v1/models", "req-1"), 200)
    assert "req-1 could not be traced" in caplog.text
