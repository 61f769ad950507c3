"""Whole routers whose requests are traced, and what a collector gets."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.generation import Delta, GenerationCall
from router.core.stages import EngineTimes
from tests.fakes.collector import CLIENT, ERROR, INTERNAL, Seen, children
from tests.fakes.pipeline import Step, words
from tests.pace import patience
from tests.router.kserve.asking import grpc_input, prompt_inputs
from tests.router.kserve.running import RunningKserve, running_kserve
from tests.router.running import EMBEDDER, MODEL, RunningRouter, running_router
from tests.router.telemetry.tracing.running import SPAN, TRACE, TRACEPARENT, Tracing, tracing

SECRET = "the text of a prompt"


@dataclass
class Traced:
    router: RunningRouter
    tracing: Tracing

    @property
    def spans(self) -> list[Seen]:
        return self.tracing.spans

    async def request(self) -> Seen:
        (request,) = await self.tracing.requests()
        return request


@pytest.fixture
async def traced() -> AsyncIterator[Traced]:
    with tracing() as opened:
        async with running_router(tracer=opened.tracer) as router:
            yield Traced(router, opened)


@pytest.fixture
async def traced_kserve() -> AsyncIterator[tuple[RunningKserve, Tracing]]:
    with tracing() as opened:
        async with running_kserve(tracer=opened.tracer) as kserve:
            yield kserve, opened


def with_engine(call: GenerationCall) -> list[Step]:
    """As an engine of this machine answers: its moments, and its steps."""
    begin_ns = time.monotonic_ns()
    first_ns, last_ns = begin_ns + 1_000_000, begin_ns + 2_000_000
    times = EngineTimes(begin_ns / 1e9, begin_ns / 1e9, first_ns / 1e9, last_ns / 1e9)
    steps = (begin_ns, first_ns, 7, 1, 7, 1, first_ns, last_ns, 1, 1, 1, 1)
    return [
        Delta("Hel", 1, 7, cached_tokens=4),
        0.01,
        Delta("lo", 1, 7, "length", times, steps=steps),
    ]


async def test_a_streamed_chat_is_one_trace_below_its_client(traced: Traced) -> None:
    traced.router.pipeline.script = with_engine
    before_ns = time.time_ns()
    headers = {"traceparent": TRACEPARENT, "tracestate": "congo=t61rcWkgMzE"}
    body = {"model": MODEL, "messages": [{"role": "user", "content": SECRET}], "stream": True}
    answer = await traced.router.http.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200
    request = await traced.request()
    assert request.name == "POST /v1/chat/completions"
    assert (request.trace_id, request.parent_id) == (TRACE, SPAN)
    assert request.state == "congo=t61rcWkgMzE"
    slack_ns = 100_000_000  # a busy machine may stop anybody between two looks at clocks
    assert before_ns - slack_ns <= request.start_ns <= request.end_ns <= time.time_ns() + slack_ns
    assert request.attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "inflight.request_id": answer.headers["x-request-id"],
        "inflight.tenant": "local",
        "inflight.tier": "standard",
        "inflight.release": "1",
        "inflight.outcome": "finished",
        "inflight.cached_tokens": 4,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "inflight",
        "gen_ai.request.model": MODEL,
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.response.finish_reasons": ["length"],
    }
    assert [name for name, _, _ in request.events] == ["first token"]
    assert request.resource["service.name"] == "inflight-router"
    assert request.resource["service.version"] == "1.2.3"
    assert request.resource["service.instance.id"]

    spans = traced.spans
    stages = {span.name: span for span in children(spans, request)}
    assert list(stages) == [
        "admission",
        "queue",
        "preprocessing",
        "engine_queue",
        "prefill",
        "decode",
        "postprocessing",
        "send",
    ]
    assert sum(stage.took_ns for stage in stages.values()) == pytest.approx(request.took_ns, abs=1000)
    steps = [span for stage in ("prefill", "decode") for span in children(spans, stages[stage])]
    assert [(step.name, step.attributes["inflight.step.tokens"]) for step in steps] == [
        ("engine step", 7),
        ("engine step", 1),
    ]
    assert {span.trace_id for span in spans} == {TRACE}
    assert {span.kind for span in stages.values()} == {INTERNAL}
    assert SECRET not in repr(spans)
    assert traced.tracing.collector.paths == ["/v1/traces"] * len(traced.tracing.collector.paths)
    assert traced.tracing.collector.headers[0]["x-key"] == "secret"


async def test_the_trace_context_is_passed_to_the_engine(traced: Traced) -> None:
    await traced.router.http.post(
        "/v1/completions",
        json={"model": MODEL, "prompt": "hi", "n": 2},
        headers={"traceparent": TRACEPARENT},
    )
    request = await traced.request()
    told = [call.trace for call in traced.router.pipeline.calls]
    assert [each and each.here.traceparent for each in told] == [f"00-{TRACE}-{request.span_id}-01"] * 2


async def test_an_engine_without_times_is_one_stage(traced: Traced) -> None:
    await traced.router.complete()
    request = await traced.request()
    stages = children(traced.spans, request)
    assert [(span.name, span.kind) for span in stages] == [
        ("admission", INTERNAL),
        ("queue", INTERNAL),
        ("triton", CLIENT),
        ("send", INTERNAL),
    ]
    assert request.parent_id == ""


async def test_a_refused_request_is_not_a_server_error(traced: Traced) -> None:
    answer = await traced.router.chat(max_tokens=-1)
    assert answer.status_code == 400
    request = await traced.request()
    assert request.attributes["http.response.status_code"] == 400
    assert request.status != ERROR


async def test_an_unknown_path_has_no_route(traced: Traced) -> None:
    await traced.router.http.get(f"/{SECRET}")
    request = await traced.request()
    assert request.name == "GET"
    assert "http.route" not in request.attributes
    assert SECRET not in repr(traced.spans)


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_engine_failure_is_an_error(traced: Traced, streamed: bool) -> None:
    failure = InflightError(ErrorKind.ENGINE_FAILED, SECRET)
    traced.router.pipeline.script = lambda call: [*words("He")[:1], failure] if streamed else [failure]
    answer = await traced.router.chat(stream=streamed)
    assert answer.status_code == (200 if streamed else 503)
    request = await traced.request()
    assert (request.status, request.message) == (ERROR, "engine_failed")
    assert request.attributes["error.type"] == "engine_failed"
    assert request.attributes["inflight.outcome"] == "failed"
    assert SECRET not in repr(traced.spans)


async def test_a_client_that_disconnects_is_not_an_error(traced: Traced) -> None:
    traced.router.pipeline.script = lambda call: [*words("He")[:1], None]
    body = {"model": MODEL, "prompt": "hi", "stream": True}
    async with traced.router.http.stream("POST", "/v1/completions", json=body) as answer:
        await anext(answer.aiter_bytes())
    request = await traced.request()
    assert request.attributes["inflight.outcome"] == "cancelled"
    assert request.status != ERROR


async def test_embeddings_are_traced(traced: Traced) -> None:
    answer = await traced.router.http.post("/v1/embeddings", json={"model": EMBEDDER, "input": "hi"})
    assert answer.status_code == 200
    request = await traced.request()
    assert request.attributes["gen_ai.operation.name"] == "embeddings"
    assert "triton" in [span.name for span in children(traced.spans, request)]


async def test_health_and_metrics_are_not_traced(traced: Traced) -> None:
    for path in ("/health/live", "/metrics"):
        await traced.router.http.get(path)
    await traced.router.http.get("/v1/models")
    assert (await traced.request()).name == "GET /v1/models"


async def test_an_unsampled_request_sends_no_spans() -> None:
    with tracing() as opened:
        async with running_router(tracer=opened.tracer) as router:
            for traceparent in (TRACEPARENT[:-1] + "0", "nonsense"):
                await router.http.get("/v1/models", headers={"traceparent": traceparent})
    (span,) = opened.spans
    assert (span.trace_id != TRACE, span.parent_id) == (True, "")


async def test_without_a_traceparent_the_sampling_setting_decides() -> None:
    with tracing(percent=0.0) as opened:
        async with running_router(tracer=opened.tracer) as router:
            await router.http.get("/v1/models")
            await router.http.get("/v1/models", headers={"traceparent": TRACEPARENT})
    assert [span.trace_id for span in opened.spans] == [TRACE]


async def test_tensors_over_http_are_traced(traced_kserve: tuple[RunningKserve, Tracing]) -> None:
    kserve, opened = traced_kserve
    url = f"http://{kserve.http_url}/v2/models/{MODEL}/generate"
    async with httpx.AsyncClient(trust_env=False, verify=False, timeout=patience(30)) as http:
        body = {"text_input": "hi", "max_tokens": 5}
        answer = await http.post(url, json=body, headers={"traceparent": TRACEPARENT})
    assert answer.status_code == 200
    (request,) = await opened.requests()
    assert request.name == "POST /v2/models/{name}/generate"
    assert (request.trace_id, request.parent_id) == (TRACE, SPAN)
    assert request.attributes["gen_ai.request.model"] == MODEL
    assert request.attributes["inflight.replica"] == "first"
    parameters = kserve.triton.requests[0].parameters
    assert parameters["inflight_trace"].bool_param
    assert parameters["traceparent"].string_param == f"00-{TRACE}-{request.span_id}-01"


async def test_tensors_over_grpc_are_traced(traced_kserve: tuple[RunningKserve, Tracing]) -> None:
    kserve, opened = traced_kserve
    inputs = prompt_inputs(grpc_input)
    headers = {"traceparent": TRACEPARENT, "tracestate": "congo=1"}
    async with triton_aio.InferenceServerClient(kserve.grpc_url) as client:
        assert await client.is_server_live()
        await client.infer(MODEL, inputs, headers=headers)
        with pytest.raises(InferenceServerException):
            await client.infer("nobody", inputs, headers=headers)
    good, bad = await opened.requests(2)
    assert good.name == bad.name == "inference.GRPCInferenceService/ModelInfer"
    assert (good.trace_id, good.parent_id, good.state) == (TRACE, SPAN, "congo=1")
    assert {key: good.attributes[key] for key in good.attributes if key.startswith("rpc.")} == {
        "rpc.system": "grpc",
        "rpc.service": "inference.GRPCInferenceService",
        "rpc.method": "ModelInfer",
        "rpc.grpc.status_code": 0,
    }
    assert bad.attributes["rpc.grpc.status_code"] == 5
    assert bad.status != ERROR
    assert "http.response.status_code" not in good.attributes
    parameters = kserve.triton.requests[0].parameters
    assert parameters["traceparent"].string_param == f"00-{TRACE}-{good.span_id}-01"
    assert parameters["tracestate"].string_param == "congo=1"
