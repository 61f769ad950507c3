"""Whatever is asked and whichever way, its time is told by stages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http.aio as http_aio

from tests.router.kserve.asking import grpc_input, http_input, prompt_inputs
from tests.router.kserve.running import RunningKserve
from tests.router.kserve.test_grpc_clients import stream
from tests.router.kserve.test_tensor_models import CLASSIFIER, TICKER, Models, count, image
from tests.router.running import EMBEDDER, MODEL

AROUND = {"admission", "queue", "send"}


@pytest.fixture
async def grpc(kserve: RunningKserve) -> AsyncIterator[Any]:
    async with grpc_aio.InferenceServerClient(kserve.grpc_url) as opened:
        yield opened


@pytest.fixture
async def http(kserve: RunningKserve) -> AsyncIterator[Any]:
    async with http_aio.InferenceServerClient(kserve.http_url) as opened:
        yield opened


async def stages(kserve: RunningKserve, model: str, requests: int = 1) -> set[str]:
    """Those of so many requests, once they are over: each stage as often."""
    metrics = kserve.router.metrics

    def found(name: str) -> dict[str, float]:
        return {
            sample.labels.get("stage", ""): sample.value
            for family in metrics.registry.collect()
            for sample in family.samples
            if sample.name == name and sample.labels["model"] == model
        }

    await kserve.router.until(lambda: found("inflight_request_seconds_count").get("") == requests)
    counts, sums = found("inflight_stage_seconds_count"), found("inflight_stage_seconds_sum")
    assert set(counts.values()) == {requests}
    assert sum(sums.values()) == pytest.approx(found("inflight_request_seconds_sum")[""], abs=0.001)
    return set(counts)


async def test_text_requests_streamed_and_whole_have_stage_times(
    kserve: RunningKserve, grpc: Any, http: Any
) -> None:
    inputs = prompt_inputs(grpc_input, stream=("BOOL", [[True]]))
    await stream(grpc, [{"model_name": MODEL, "inputs": inputs}])
    await http.infer(MODEL, prompt_inputs(http_input))
    assert await stages(kserve, MODEL, 2) == AROUND | {"triton"}, "this engine tells no times"


async def test_embeddings_have_stage_times_by_either_protocol(
    kserve: RunningKserve, grpc: Any, http: Any
) -> None:
    await grpc.infer(EMBEDDER, [grpc_input("TEXT", "BYTES", [[b"abc"]])])
    await http.infer(EMBEDDER, [http_input("TEXT", "BYTES", [[b"abc"]])])
    await kserve.router.http.post("/v1/embeddings", json={"model": EMBEDDER, "input": ["a", "b"]})
    assert await stages(kserve, EMBEDDER, 3) == AROUND | {"triton"}


async def test_tensor_models_have_stage_times_with_one_answer_or_many(
    kserve: RunningKserve, grpc: Any
) -> None:
    Models(kserve)
    await grpc.infer(CLASSIFIER, image(grpc_input))
    await stream(grpc, [{"model_name": TICKER, "inputs": count(grpc_input)}])
    for model in (CLASSIFIER, TICKER):
        assert await stages(kserve, model) == AROUND | {"triton"}
