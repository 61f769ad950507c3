"""What is measured of Triton's clients, and the tier that they ask for."""

from __future__ import annotations

from typing import Any

import tritonclient.grpc.aio as triton_aio

from python_backend.wire.tiers import Tier
from router.core.objective import Metric
from tests.router.kserve.asking import grpc_input, prompt_inputs
from tests.router.kserve.running import RunningKserve
from tests.router.kserve.test_grpc_clients import stream
from tests.router.running import EMBEDDER, MODEL


def samples(kserve: RunningKserve, model: str, tier: Tier) -> tuple[int, ...]:
    monitor = kserve.router.metrics.objectives
    return tuple(monitor.window(model, tier, metric).samples for metric in Metric)


def asked(tier: str, **more: Any) -> dict[str, Any]:
    inputs = prompt_inputs(grpc_input, **more)
    return {"model_name": MODEL, "inputs": inputs, "parameters": {"inflight_tier": tier}}


async def test_streams_are_measured_by_token_and_whole_answers_as_a_whole(kserve: RunningKserve) -> None:
    async with triton_aio.InferenceServerClient(kserve.grpc_url) as client:
        await stream(client, [asked("interactive", stream=("BOOL", [[True]]))])
        await kserve.router.until(lambda: samples(kserve, MODEL, Tier.INTERACTIVE)[2] == 1)
        first, between, _ = samples(kserve, MODEL, Tier.INTERACTIVE)
        assert first == 1
        assert between > 0
        await stream(client, [asked("batch")])
        await kserve.router.until(lambda: samples(kserve, MODEL, Tier.BATCH) == (0, 0, 1))
    sent = [request.parameters["inflight_tier"].string_param for request in kserve.triton.requests]
    assert sent == ["interactive", "batch"]


async def test_a_model_without_tokens_has_tiers(kserve: RunningKserve) -> None:
    async with triton_aio.InferenceServerClient(kserve.grpc_url) as client:
        texts = [grpc_input("TEXT", "BYTES", [[b"abc"]])]
        await client.infer(EMBEDDER, texts, parameters={"inflight_tier": "batch"})
    await kserve.router.until(lambda: samples(kserve, EMBEDDER, Tier.BATCH) == (0, 0, 1))
