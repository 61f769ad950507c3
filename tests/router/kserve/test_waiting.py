"""Triton's clients at the gate of a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException

from python_backend.wire.tiers import Tier
from router.admission.capacity import Capacity
from router.admission.demand import Need, Reason, Refused
from router.admission.gates import Gates
from router.core.objective import Objective
from router.core.record import Record
from router.kserve.tensor_models import rows_of
from router.kserve.tensors import RawTensor
from router.routing.replicas import Fleet
from tests.pace import patience
from tests.router.admission.test_waiting import Gated, Strict
from tests.router.kserve.asking import grpc_input, prompt_inputs
from tests.router.kserve.running import RunningKserve, running_kserve
from tests.router.running import EMBEDDER, MODEL


@pytest.fixture
async def kserve() -> AsyncIterator[RunningKserve]:
    gates = Gates(Fleet([]), Strict, Objective)
    async with running_kserve(gates=gates) as running:
        yield running
        gates.close()


@pytest.fixture
async def client(kserve: RunningKserve) -> AsyncIterator[triton_aio.InferenceServerClient]:
    async with triton_aio.InferenceServerClient(kserve.grpc_url) as opened:
        yield opened


async def test_rows_and_their_sequences_take_a_slot_each(kserve: RunningKserve, client: Any) -> None:
    gated = Gated(kserve.router)
    inputs = [
        grpc_input("text_input", "BYTES", [[b"a"], [b"b"]]),
        grpc_input("max_tokens", "INT32", [[4], [4]]),
        grpc_input("num_return_sequences", "INT32", [[2], [3]]),
    ]
    await client.infer(MODEL, inputs, parameters={"inflight_tier": "interactive"})
    await client.infer(EMBEDDER, [grpc_input("TEXT", "BYTES", [[b"a"], [b"b"], [b"c"]])])
    (text,), (vectors,) = gated.policy().demands, gated.policy(EMBEDDER).demands
    assert (text.sequences, text.tier, vectors.sequences) == (5, Tier.INTERACTIVE, 3)
    await kserve.router.until(gated.is_empty)


async def test_an_answer_that_comes_whole_has_no_first_token_time(kserve: RunningKserve, client: Any) -> None:
    gated = Gated(kserve.router)
    await client.infer(MODEL, prompt_inputs(grpc_input))
    assert gated.policy().heard_count == 0
    body = {"text_input": "one two", "max_tokens": 2, "stream": True}
    async with httpx.AsyncClient(base_url=f"http://{kserve.http_url}", timeout=patience(30)) as http:
        assert (await http.post(f"/v2/models/{MODEL}/generate_stream", json=body)).is_success
    assert gated.policy().heard_count == 1


async def test_a_grpc_deadline_becomes_the_requests_deadline(kserve: RunningKserve, client: Any) -> None:
    await client.infer(MODEL, prompt_inputs(grpc_input), client_timeout=50.0)
    headers = {"x-inflight-deadline-ms": "700"}
    await client.infer(MODEL, prompt_inputs(grpc_input), client_timeout=50.0, headers=headers)
    await client.infer(MODEL, prompt_inputs(grpc_input))
    waits = [demand.deadline_s - demand.arrived_s for demand in Gated(kserve.router).policy().demands]
    assert 0 < waits[0] < 55.0  # what is left of it, by a clock of gRPC's own
    assert waits[1:] == pytest.approx([0.7, 60.0])


async def test_priority_and_timeout_are_the_tier_and_the_deadline(kserve: RunningKserve, client: Any) -> None:
    await client.infer(MODEL, prompt_inputs(grpc_input), priority=1, timeout=700_000)
    await client.infer(MODEL, prompt_inputs(grpc_input), priority=3, client_timeout=50.0, timeout=55_000_000)
    first, second = Gated(kserve.router).policy().demands
    assert (first.tier, second.tier) == (Tier.INTERACTIVE, Tier.BATCH)
    assert first.deadline_s - first.arrived_s == pytest.approx(0.7)
    assert second.deadline_s - second.arrived_s < 53.0


async def test_a_refusal_is_unavailable_with_a_retry_time(kserve: RunningKserve, client: Any) -> None:
    policy = Gated(kserve.router).policy()
    policy.refusal = Refused(Reason.BUSY, "too many wait already", 10.0)
    with pytest.raises(InferenceServerException, match="too many wait already") as refused:
        await client.infer(MODEL, prompt_inputs(grpc_input))
    assert refused.value.status() == "StatusCode.UNAVAILABLE"
    assert kserve.triton.requests == []


@pytest.mark.parametrize("way", ["infer", "generate", "generate_stream"])
async def test_a_refusal_over_http_has_a_status_a_retry_time_and_tritons_shape(
    kserve: RunningKserve, way: str
) -> None:
    text: dict[str, Any] = {"text_input": "one two", "max_tokens": 2}
    inputs = [
        {"name": name, "datatype": kind, "shape": [1, 1], "data": [text[name]]}
        for name, kind in (("text_input", "BYTES"), ("max_tokens", "INT32"))
    ]
    policy = Gated(kserve.router).policy()
    refusals = (Refused(Reason.BUSY, "too many wait", 10.0), Refused(Reason.TOO_LARGE, "it does not fit"))
    async with httpx.AsyncClient(
        base_url=f"http://{kserve.http_url}/v2/models/{MODEL}", timeout=patience(30)
    ) as http:
        for policy.refusal, status in zip(refusals, (503, 413), strict=True):
            answer = await http.post(f"/{way}", json={"inputs": inputs} if way == "infer" else text)
            assert (answer.status_code, answer.json()) == (status, {"error": policy.refusal.message})
            assert ("retry-after" in answer.headers) == (status == 503)
    assert kserve.triton.requests == []


async def test_a_client_that_cancels_in_the_queue_is_not_waited_for(
    kserve: RunningKserve, client: Any
) -> None:
    gated = Gated(kserve.router)
    gated.gate().resize(Capacity(1, 1))
    other = Record("test", "other", model=MODEL, model_version="1")
    turn = gated.gate().offer(other, Need(1, 1))
    waiting = asyncio.create_task(client.infer(MODEL, prompt_inputs(grpc_input)))
    await kserve.router.until(lambda: gated.gate().waiting_count == 1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await kserve.router.until(lambda: gated.gate().waiting_count == 0)
    assert kserve.triton.requests == []
    turn.end(finished=True)
    await kserve.router.until(gated.is_empty)


def test_a_request_to_a_model_without_batching_counts_as_one_row() -> None:
    tensors = {"IMAGE": RawTensor("FP32", (3, 2), b"")}
    assert rows_of(tensors, 8) == 3
    assert rows_of(tensors, 0) == 1
    assert rows_of({}, 8) == 1
