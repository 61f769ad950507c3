"""A list of 2,048 texts beside others' single ones, through a real server: nobody is behind all of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from python_backend.costs.batch_cost import BatchCost
from router.admission.capacity import Capacity
from router.admission.dispatcher import Dispatcher
from router.admission.forecast import OutputLengths
from router.admission.gate import Gate
from router.admission.gates import Gates
from router.admission.policy import FirstCome, Policy
from router.admission.queue import EqualShares
from router.core.embedding import CALLS_AT_ONCE, ROWS_PER_CALL
from router.core.objective import Objective
from router.request.embedding_calls import MAX_INPUTS
from router.routing.replicas import Fleet
from tests.router.running import EMBEDDER, RunningRouter, running_router

LIST = [f"text {number}" for number in range(MAX_INPUTS)]
SLOTS = 2 * ROWS_PER_CALL * CALLS_AT_ONCE
CALLS_OF_A_LIST = MAX_INPUTS // ROWS_PER_CALL


def by_objectives() -> Policy:
    return Dispatcher(EqualShares(), OutputLengths())


@pytest.fixture(params=[by_objectives, FirstCome], ids=["objectives", "first_come"])
async def router(request: pytest.FixtureRequest) -> AsyncIterator[RunningRouter]:
    gates = Gates(Fleet([]), request.param, Objective)
    async with running_router(gates=gates) as running:
        gate = gate_of(running)
        gate.is_fixed_cost = True
        gate.resize(Capacity(1, SLOTS, batch=BatchCost(2.0, 0.1)))
        yield running
        gates.close()


def gate_of(router: RunningRouter) -> Gate:
    return router.gates[EMBEDDER, "1"]


async def key_of(router: RunningRouter, tenant: str) -> dict[str, str]:
    return {"authorization": f"Bearer {await router.new_key(await router.new_tenant(tenant))}"}


def embed(router: RunningRouter, key: dict[str, str], given: str | list[str]) -> asyncio.Task[httpx.Response]:
    body = {"model": EMBEDDER, "input": given}
    return asyncio.create_task(router.http.post("/v1/embeddings", json=body, headers=key))


async def test_a_single_text_is_not_behind_other_tenants_lists(router: RunningRouter) -> None:
    large, small = await key_of(router, "large"), await key_of(router, "small")
    router.embedder.hold()
    lists = [embed(router, large, LIST) for _ in range(3)]
    await router.until(lambda: gate_of(router).waiting_count == 1)  # two take all slots
    single = embed(router, small, "one")
    await router.until(lambda: gate_of(router).waiting_count == 2)
    before = len(router.embedder.calls)
    router.embedder.release()
    assert (await single).status_code == 200
    passed = len(router.embedder.calls) - before
    assert passed <= 4 * CALLS_AT_ONCE
    assert passed < CALLS_OF_A_LIST / 4
    answers = await asyncio.gather(*lists)
    assert [len(answer.json()["data"]) for answer in answers] == [MAX_INPUTS] * 3
    assert [each["index"] for each in answers[0].json()["data"]] == list(range(MAX_INPUTS))
    await router.until(lambda: gate_of(router).open_count == gate_of(router).taken_slots == 0)


async def test_a_list_alone_keeps_its_turn(router: RunningRouter) -> None:
    key = await key_of(router, "large")
    answer = await embed(router, key, LIST)
    assert len(answer.json()["data"]) == MAX_INPUTS
    assert router.embedder.most_under_way == CALLS_AT_ONCE


async def test_a_list_whose_client_leaves_while_it_gives_way_holds_nothing(router: RunningRouter) -> None:
    key = await key_of(router, "large")
    router.embedder.hold()
    lists = [embed(router, key, LIST) for _ in range(4)]
    await router.until(lambda: gate_of(router).waiting_count == 2)
    for each in lists:
        each.cancel()
    router.embedder.release()
    await asyncio.gather(*lists, return_exceptions=True)
    await router.until(lambda: gate_of(router).open_count == gate_of(router).taken_slots == 0)
    assert router.permits.open_count == 0
