"""A request's trace, from its client's traceparent through the router to the engine's steps."""

from __future__ import annotations

import time
from dataclasses import dataclass

import httpx
import pytest

from benchmarks.stack import RunningStack
from tests.fakes.collector import SERVER, Collector, Seen, children
from tests.pace import patience
from tests.stack.conftest import STEP_TOKENS
from tests.waiting import wait_until

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@dataclass(frozen=True)
class TracedStack:
    stack: RunningStack
    collector: Collector


@pytest.fixture
def traced(exact_stack: RunningStack, collector: Collector) -> TracedStack:
    return TracedStack(exact_stack, collector)


def ask(traced: TracedStack, words: int, max_tokens: int, **headers: str) -> float:
    """How long it took, in seconds."""
    body = {
        "model": traced.stack.model,
        "prompt": " ".join(["word"] * words),
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": True,
    }
    began_s = time.monotonic()
    answer = httpx.post(
        f"{traced.stack.url}/v1/completions",
        json=body,
        headers=headers,
        timeout=patience(60),
        trust_env=False,
        verify=False,
    )
    assert answer.status_code == 200, answer.text
    return time.monotonic() - began_s


def is_within(inner: Seen, outer: Seen, slack_ns: int = 2000) -> bool:
    """Moments are floats of seconds on their way."""
    return outer.start_ns - slack_ns <= inner.start_ns and inner.end_ns <= outer.end_ns + slack_ns


def steps_in(spans: list[Seen]) -> int:
    return sum(span.attributes.get("inflight.step.count", 0) for span in spans)


def test_one_trace_has_the_request_its_stages_and_the_engines_steps(traced: TracedStack) -> None:
    ask(traced, 10, 3)  # one without a traceparent, of which no one is traced here
    took_s = ask(traced, 100, 20, traceparent=f"00-{TRACE}-{SPAN}-01")
    collector = traced.collector

    def have_come() -> bool:
        spans = list(collector.spans)
        return steps_in(spans) >= 4 + 19 and any(span.kind == SERVER for span in spans)

    wait_until(have_come, "the spans did not come", 60)
    spans = list(collector.spans)
    assert {span.trace_id for span in spans} == {TRACE}

    (request,) = [span for span in spans if span.kind == SERVER]
    assert request.parent_id == SPAN
    prompt_tokens = request.attributes["gen_ai.usage.input_tokens"]
    assert request.attributes["gen_ai.usage.output_tokens"] == 20
    assert prompt_tokens > 3 * STEP_TOKENS

    stages = {span.name: span for span in children(spans, request)}
    assert set(stages) == {
        "admission",
        "queue",
        "preprocessing",
        "engine_queue",
        "prefill",
        "decode",
        "postprocessing",
        "send",
    }
    assert sum(stage.took_ns for stage in stages.values()) == pytest.approx(request.took_ns, abs=20_000)
    assert all(is_within(stage, request) for stage in stages.values())
    # The client may have the last byte before the router notices that it has sent it.
    assert (request.took_ns - stages["send"].took_ns) / 1e9 <= took_s

    of_prompt, of_answer = children(spans, stages["prefill"]), children(spans, stages["decode"])
    assert all(is_within(step, stages["prefill"]) for step in of_prompt)
    assert all(is_within(step, stages["decode"]) for step in of_answer)
    assert {step.name for step in (*of_prompt, *of_answer)} == {"engine step"}
    computed = prompt_tokens - request.attributes["inflight.cached_tokens"]
    assert sum(step.attributes["inflight.step.tokens"] for step in of_prompt) == computed
    assert max(step.attributes["inflight.step.tokens"] for step in of_prompt) == STEP_TOKENS
    assert sum(step.attributes["inflight.step.count"] for step in of_answer) == 19, (
        "the first was the prompt's"
    )


def test_metrics_count_the_sent_and_dropped_spans(traced: TracedStack) -> None:
    def told() -> dict[str, float]:
        lines = httpx.get(
            f"{traced.stack.url}/metrics", trust_env=False, verify=False, timeout=patience(30)
        ).text.splitlines()
        found = [line.rsplit(" ", 1) for line in lines if line.startswith("inflight_spans_")]
        return {name: float(value) for name, value in found}

    ask(traced, 5, 2, traceparent=f"00-{TRACE}-{SPAN}-01")
    sent = "inflight_spans_sent_total"
    wait_until(lambda: 0 < told()[sent] == len(traced.collector.spans), "the spans were not counted", 60)
    assert told()['inflight_spans_dropped_total{reason="queue_full"}'] == 0
    assert told()['inflight_spans_dropped_total{reason="export_failed"}'] == 0
