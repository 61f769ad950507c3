from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.record import Record
from router.core.stages import STAGES, EngineTimes
from router.core.tenant import LOCAL_CALLER
from router.core.trace import Trace, TraceContext
from router.telemetry.tracing.spans import STEP, Kind, Span, spans_of

PARENT = TraceContext(0xABC, 0x111, True, "congo=1")


def a_trace(**more: object) -> Trace:
    trace = Trace("POST /v1/completions", {}, TraceContext(0xABC, 0x222, True), PARENT)
    for name, value in more.items():
        setattr(trace, name, value)
    return trace


def a_record(**more: object) -> Record:
    record = Record(
        "/v1/completions", "cmpl-1", LOCAL_CALLER, model="tiny", model_version="3", arrived_s=10.0
    )
    for name, value in more.items():
        setattr(record, name, value)
    return record


def spans(trace: Trace, record: Record, status: int = 200, now_s: float = 30.0) -> list[Span]:
    return spans_of(trace, record, status, now_s, itertools.count(0x1000).__next__)


WITH_ENGINE = {
    "admitted_s": 11.0,
    "dispatched_s": 12.0,
    "received_s": 25.0,
    "engine": EngineTimes(13.0, 14.0, 16.0, 20.0),
    "outcome": "finished",
}


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=9, max_size=9).map(sorted), st.booleans())
def test_the_stages_of_a_request_follow_each_other_from_start_to_end(
    moments: list[float], has_engine: bool
) -> None:
    arrived_s, admitted_s, dispatched_s, *engine, received_s, ended_s = moments
    record = a_record(
        arrived_s=arrived_s,
        admitted_s=admitted_s,
        dispatched_s=dispatched_s,
        received_s=received_s or None,
        engine=EngineTimes(*engine) if has_engine else None,
    )
    request, *stages = spans(a_trace(), record, now_s=ended_s)
    assert (request.start_s, request.end_s) == (arrived_s, ended_s)
    assert {stage.parent_id for stage in stages} == {request.span_id}
    assert stages[0].start_s == arrived_s
    assert stages[-1].end_s == ended_s
    assert all(one.end_s == other.start_s for one, other in itertools.pairwise(stages))
    assert {stage.name: stage.end_s - stage.start_s for stage in stages} == record.stages(ended_s)
    assert len({span.span_id for span in (request, *stages)}) == 1 + len(stages)


def test_the_request_span_is_a_child_of_its_caller_and_describes_the_request() -> None:
    record = a_record(
        **WITH_ENGINE,
        prompt_tokens=40,
        completion_tokens=7,
        cached_tokens=32,
        finish_reason="length",
        first_token_s=16.5,
    )
    request = spans(a_trace(attributes={"http.route": "/v1/completions"}), record)[0]
    assert (request.parent_id, request.span_id, request.kind) == (0x111, 0x222, Kind.SERVER)
    assert request.attributes == {
        "http.route": "/v1/completions",
        "inflight.request_id": "cmpl-1",
        "inflight.tenant": "local",
        "inflight.tier": "standard",
        "inflight.release": "3",
        "inflight.outcome": "finished",
        "inflight.cached_tokens": 32,
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "inflight",
        "gen_ai.request.model": "tiny",
        "gen_ai.usage.input_tokens": 40,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.response.finish_reasons": ("length",),
    }
    assert [(event.name, event.at_s) for event in request.events] == [("first token", 16.5)]
    assert not request.error


def test_without_a_parent_the_request_span_is_the_root() -> None:
    assert spans(a_trace(parent=None), a_record())[0].parent_id == 0


def seconds(*rows: tuple[float, float, int, int, int, int]) -> list[int]:
    return [int(1e9 * each) if place < 2 else int(each) for row in rows for place, each in enumerate(row)]


def test_step_spans_are_children_of_their_stage() -> None:
    told = seconds((14, 15, 512, 3, 514, 1), (15, 16, 100, 3, 102, 1), (16, 20, 6, 2, 2, 6))
    found = spans(a_trace(steps=told), a_record(**WITH_ENGINE))
    by_id = {span.span_id: span.name for span in found}
    steps = [span for span in found if span.name == STEP]
    assert [by_id[step.parent_id] for step in steps] == ["prefill", "prefill", "decode"]
    assert steps[0].attributes == {
        "inflight.step.tokens": 512,
        "inflight.step.sequences": 3,
        "inflight.step.batch_tokens": 514,
        "inflight.step.count": 1,
    }
    assert (steps[2].start_s, steps[2].end_s) == (16.0, 20.0)


@pytest.mark.parametrize(
    "told",
    [
        pytest.param([1, 2, 3], id="no rows"),
        pytest.param(seconds((1, 2, 1, 1, 1, 1)), id="before it came"),
        pytest.param(seconds((29, 31, 1, 1, 1, 1)), id="after its end"),
        pytest.param(seconds((16, 15, 1, 1, 1, 1)), id="the wrong way round"),
    ],
)
def test_impossible_steps_are_left_out(told: list[int]) -> None:
    found = spans(a_trace(steps=told), a_record(**WITH_ENGINE))
    assert STEP not in [span.name for span in found]


def test_steps_of_another_machines_clock_are_left_out() -> None:
    record = a_record(**{**WITH_ENGINE, "engine": EngineTimes(1.0, 2.0, 3.0, 4.0)})
    found = spans(a_trace(steps=seconds((14, 15, 1, 1, 1, 1))), record)
    assert [span.name for span in found[1:]] == ["admission", "queue", "triton", "send"]
    assert found[3].kind is Kind.CLIENT


def test_a_step_across_two_stages_is_a_child_of_the_request() -> None:
    found = spans(a_trace(steps=seconds((15, 17, 1, 1, 1, 1))), a_record(**WITH_ENGINE))
    assert found[-1].parent_id == found[0].span_id


def test_a_request_refused_in_the_queue_shows_how_far_it_came() -> None:
    found = spans(a_trace(), a_record(admitted_s=11.0, outcome="failed"), 503)
    assert [(span.name, span.start_s, span.end_s) for span in found[1:]] == [
        ("admission", 10.0, 11.0),
        ("queue", 11.0, 30.0),
    ]
    assert [span.name for span in spans(a_trace(), a_record(), 429)[1:]] == ["admission"]
    assert [span.name for span in spans(a_trace(), a_record(model=""), 401)[1:]] == []


@pytest.mark.parametrize(
    ("status", "outcome", "kind", "error"),
    [
        (200, "finished", "", ""),
        (200, "failed", "engine_failed", "engine_failed"),
        (503, "failed", "overloaded", "overloaded"),
        (500, "", "", "500"),
        (429, "", "rate_limited", ""),
        (499, "cancelled", "cancelled", ""),
        (400, "failed", "invalid_request", ""),
    ],
)
def test_only_server_faults_are_span_errors(status: int, outcome: str, kind: str, error: str) -> None:
    request = spans(a_trace(), a_record(outcome=outcome, error=kind), status)[0]
    assert request.error == error
    assert request.attributes.get("error.type", "") == error


def test_each_attempt_is_an_event_when_there_was_more_than_one() -> None:
    trace = a_trace()
    trace.attempted("triton-0", 12.0)
    assert [event.name for event in spans(trace, a_record())[0].events] == []
    trace.failed(12.0, "stub_dead")
    trace.attempted("triton-1", 13.0)
    request = spans(trace, a_record())[0]
    assert [(event.name, event.at_s, event.attributes) for event in request.events] == [
        ("attempt", 12.0, {"inflight.replica": "triton-0", "error.type": "stub_dead"}),
        ("attempt", 13.0, {"inflight.replica": "triton-1"}),
    ]
    assert request.attributes["inflight.replica"] == "triton-1"
    assert request.attributes["inflight.attempts"] == 2


def test_every_span_and_attribute_is_documented() -> None:
    page = (Path(__file__).parents[4] / "docs" / "tracing.md").read_text()
    record = a_record(
        **{**WITH_ENGINE, "outcome": "failed"},
        error="engine_failed",
        prompt_tokens=1,
        finish_reason="length",
        first_token_s=16.5,
    )
    trace = a_trace(steps=seconds((14, 15, 1, 1, 1, 1)))
    trace.attempted("triton-0", 12.0)
    trace.attempted("triton-1", 13.0)
    found = spans(trace, record)
    said = {span.name for span in found[1:]} | {event.name for event in found[0].events}
    said |= {name for span in found for name in span.attributes}
    assert said <= set(re.findall(r"`([\w. ]+)`", page))
    assert set(STAGES) <= set(re.findall(r"`([\w. ]+)`", page))
