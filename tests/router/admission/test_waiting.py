"""Requests of every door at the gate of their model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest

from python_backend.wire.tiers import Tier
from router.admission.capacity import Capacity
from router.admission.demand import Demand, Progress, QueueEntry, Reason, Refused
from router.admission.gate import Gate
from router.admission.gates import Gates
from router.admission.policy import FirstCome
from router.core.objective import Objective
from router.core.record import Record
from router.core.tenant import LOCAL_CALLER
from router.http.inner_exchange import InnerExchange
from router.routing.replicas import Fleet
from tests.fakes.pipeline import words
from tests.router.raw import RawClient, chat_request
from tests.router.request.test_answer import garbage
from tests.router.running import EMBEDDER, MODEL, RunningRouter, running_router


class Strict(FirstCome):
    """Refuses as it is told to, and remembers what was asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.refusal: Refused | None = None
        self.demands: list[Demand] = []
        self.heard_count = 0

    def offer(self, demand: Demand, progress: Progress, now_s: float) -> QueueEntry | Refused:
        self.demands.append(demand)
        return self.refusal or super().offer(demand, progress, now_s)

    def first_token(self, entry: QueueEntry, now_s: float) -> None:
        self.heard_count += 1
        super().first_token(entry, now_s)


class Gated:
    """A router whose models have one gate each, with as many slots as a test wants."""

    def __init__(self, router: RunningRouter) -> None:
        self.router = router
        self.go_on = asyncio.Event()

    def gate(self, model: str = MODEL) -> Gate:
        return self.router.gates[model, "1"]

    def policy(self, model: str = MODEL) -> Strict:
        policy = self.gate(model)._policy
        assert isinstance(policy, Strict)
        return policy

    async def fill(self, slots: int = 1) -> asyncio.Task[httpx.Response]:
        """All slots are taken until the answer is stopped or `go_on` is set."""
        self.go_on.clear()
        self.gate().resize(Capacity(1, slots))
        self.router.pipeline.script = lambda call: [self.go_on, *words("slow")]
        task = asyncio.create_task(self.router.chat(n=slots))
        await self.router.until(lambda: len(self.router.pipeline.calls) == slots)
        return task

    def is_empty(self) -> bool:
        return self.gate().open_count == self.gate().waiting_count == self.router.permits.open_count == 0


@pytest.fixture
async def gated() -> AsyncIterator[Gated]:
    gates = Gates(Fleet([]), Strict, Objective)
    async with running_router(gates=gates) as router:
        yield Gated(router)
        gates.close()


async def test_a_request_waits_for_its_turn_and_is_answered(gated: Gated) -> None:
    first = await gated.fill()
    second, streamed = asyncio.create_task(gated.router.chat()), gated.router.chat(stream=True)
    third = asyncio.create_task(streamed)
    await gated.router.until(lambda: gated.gate().waiting_count == 2)
    assert len(gated.router.pipeline.calls) == 1
    gated.go_on.set()
    answers = await asyncio.gather(first, second, third)
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    await gated.router.until(gated.is_empty)
    assert gated.policy().heard_count == 3


async def test_the_wait_is_in_the_stage_queue_of_the_usage(gated: Gated) -> None:
    began_s = time.monotonic()
    first = await gated.fill()
    second = asyncio.create_task(gated.router.chat())
    await gated.router.until(lambda: gated.gate().waiting_count == 1)
    await asyncio.sleep(0.1)
    gated.go_on.set()
    await asyncio.gather(first, second)
    who = {"stage": "queue", "model": MODEL, "release": "1", "tenant": "local"}
    waited_s = gated.router.metric("inflight_stage_seconds_sum", **who)
    assert 0.1 <= waited_s <= time.monotonic() - began_s


async def test_answers_to_one_prompt_and_several_prompts_take_a_slot_each(gated: Gated) -> None:
    await gated.router.chat(n=3)
    await gated.router.complete(prompt=["a", "b"], n=2)
    assert [demand.sequences for demand in gated.policy().demands] == [3, 4]


async def test_a_refused_request_gets_503_with_a_retry_time_and_leaves_nothing_behind(gated: Gated) -> None:
    tenant = await gated.router.new_tenant()
    headers = {"authorization": f"Bearer {await gated.router.new_key(tenant)}"}
    gated.policy().refusal = Refused(Reason.BUSY, "too many wait already", 10.0)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    answer = await gated.router.http.post("/v1/chat/completions", json=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "overloaded")
    assert answer.json()["error"]["message"] == "too many wait already"
    assert 8 <= int(answer.headers["retry-after"]) <= 12
    assert gated.router.pipeline.calls == []
    assert gated.is_empty()
    assert await gated.router.usage(tenant) == []
    assert gated.router.parts.tenancy.ledger.running(tenant) == 0


async def test_a_refusal_counts_once_against_the_objectives(gated: Gated) -> None:
    gated.gate()._watcher = gated.router.metrics.admission
    gated.policy().refusal = Refused(Reason.BUSY, "too many wait already", 10.0)
    for _ in range(3):
        assert (await gated.router.chat()).status_code == 503
    objectives = gated.router.metrics.objectives
    await gated.router.until(lambda: objectives.refusals(MODEL, Tier.STANDARD) >= 3)
    assert objectives.refusals(MODEL, Tier.STANDARD) == 3


async def test_a_refusal_by_a_model_without_tokens_does_not_mention_a_first_token(gated: Gated) -> None:
    gated.gate(EMBEDDER).is_fixed_cost = True
    for model in (EMBEDDER, MODEL):
        message = "the first token would come too late: the model is busy"
        gated.policy(model).refusal = Refused(Reason.BUSY, message, 10.0)
    refused = await gated.router.http.post("/v1/embeddings", json={"model": EMBEDDER, "input": "x"})
    assert refused.json()["error"]["message"] == "the answer would come too late: the model is busy"
    assert "the first token" in (await gated.router.chat()).json()["error"]["message"]


async def test_a_request_that_can_never_fit_gets_413(gated: Gated) -> None:
    gated.policy().refusal = Refused(Reason.TOO_LARGE, "more than the cache holds")
    answer = await gated.router.chat()
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    assert "retry-after" not in answer.headers


async def test_a_client_that_disconnects_in_the_queue_never_reaches_the_engine(gated: Gated) -> None:
    first = await gated.fill()
    client = await RawClient.connect(gated.router.port)
    await client.send(chat_request())
    await gated.router.until(lambda: gated.gate().waiting_count == 1)
    await client.close()
    await gated.router.until(lambda: gated.gate().waiting_count == 0)
    gated.go_on.set()
    assert (await first).status_code == 200
    await gated.router.until(gated.is_empty)
    assert len(gated.router.pipeline.calls) == 1
    who = {"model": MODEL, "tenant": "local"}
    assert gated.router.metric("inflight_requests_ended_total", outcome="cancelled", **who) == 1
    stages = {stage: _stage(gated, stage) for stage in ("admission", "queue", "triton", "send")}
    assert stages == {"admission": 2, "queue": 2, "triton": 1, "send": 1}, "its wait is told"


def _stage(gated: Gated, stage: str) -> float:
    who = {"model": MODEL, "tenant": "local", "stage": stage}
    return gated.router.metric("inflight_stage_seconds_count", **who)


async def test_queued_requests_are_refused_at_once_when_the_router_drains(gated: Gated) -> None:
    first = await gated.fill()
    second = asyncio.create_task(gated.router.chat())
    await gated.router.until(lambda: gated.gate().waiting_count == 1)
    gated.router.permits.drain()
    assert (await second).status_code == 503
    assert not first.done()
    gated.go_on.set()
    assert (await first).status_code == 200


async def test_a_long_list_of_texts_takes_as_many_slots_as_it_has_rows_in_flight(gated: Gated) -> None:
    gate = gated.gate(EMBEDDER)
    gate.is_fixed_cost = True
    body = {"model": EMBEDDER, "input": ["x"] * 2048}
    for slots in (1000, 10):
        gate.resize(Capacity(1, slots))
        assert (await gated.router.http.post("/v1/embeddings", json=body)).status_code == 200
    await gated.router.http.post("/v1/embeddings", json={**body, "input": "x"})
    policy = gated.policy(EMBEDDER)
    assert [demand.sequences for demand in policy.demands] == [64, 10, 1]
    assert [demand.rows for demand in policy.demands] == [2048, 2048, 1], "all of them are paid for"
    assert policy.heard_count == 3
    await gated.router.until(lambda: gate.open_count == 0)


async def test_requests_of_a_batch_wait_in_the_batch_tier_whatever_their_lines_ask_for(gated: Gated) -> None:
    body = msgspec.json.encode({"model": MODEL, "prompt": "hi", "service_tier": "priority"})
    exchange = InnerExchange("/v1/completions", body)
    await gated.router.app(exchange, LOCAL_CALLER, Tier.BATCH)
    assert exchange.status == 200
    (demand,) = gated.policy().demands
    assert demand.tier is Tier.BATCH
    assert demand.deadline_s - demand.arrived_s == pytest.approx(600)


async def test_a_client_sets_how_long_it_waits(gated: Gated) -> None:
    headers = {"x-inflight-deadline-ms": "250"}
    body = {"model": MODEL, "prompt": "hi"}
    await gated.router.http.post("/v1/completions", json=body, headers=headers)
    (demand,) = gated.policy().demands
    assert demand.deadline_s - demand.arrived_s == pytest.approx(0.25)
    headers = {"x-inflight-deadline-ms": "soon"}
    answer = await gated.router.http.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 400
    assert "expected 1 to 3600000 milliseconds, got soon" in answer.json()["error"]["message"]


async def test_a_request_waits_in_the_tier_that_its_client_asked_for(gated: Gated) -> None:
    for tier in ("priority", "flex", "default"):
        await gated.router.chat(service_tier=tier)
    assert [demand.tier for demand in gated.policy().demands] == [
        Tier.INTERACTIVE,
        Tier.BATCH,
        Tier.STANDARD,
    ]


async def test_queued_cancelled_and_refused_requests_leave_nothing_for_the_garbage_collector(
    gated: Gated,
) -> None:
    async def live() -> None:
        first = await gated.fill()
        second = asyncio.create_task(gated.router.chat())
        client = await RawClient.connect(gated.router.port)
        await client.send(chat_request())
        await gated.router.until(lambda: gated.gate().waiting_count == 2)
        await client.close()
        gated.go_on.set()
        await first, await second
        gated.policy().refusal = Refused(Reason.BUSY, "busy", 1.0)
        await gated.router.chat()
        gated.policy().refusal = None
        gated.router.pipeline.calls.clear()
        gated.router.pipeline.generations.clear()
        gated.policy().demands.clear()

    await live()
    with garbage() as found:
        await live()
        await gated.router.http.aclose()
        await gated.router.until(lambda: gated.router.listener.connection_count == 0)
    assert not found


def test_a_record_without_a_deadline_waits_as_long_as_its_model_allows() -> None:
    assert Record("test", "req").deadline_s == float("inf")
