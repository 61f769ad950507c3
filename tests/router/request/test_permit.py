"""Who may use which model, how much of it, and what is written down of it."""

from __future__ import annotations

import asyncio
import math
import threading

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.tenant import Limits, Price, Scope
from router.request.permit import refused
from router.tenants.administration import Administration
from router.tenants.limits import NS_PER_S, Limit, Refusal
from router.tenants.rbac import SYSTEM
from tests.fakes.pipeline import Step, words
from tests.router.running import MODEL, QUESTION, RunningRouter, running_router

CHAT = {"model": MODEL, "messages": QUESTION, "max_tokens": 10}


TEN = [f" {number}" for number in range(10)]


def slowly(*texts: str) -> list[Step]:
    return [each for step in words(*texts) for each in (0.02, step)]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def chat(router: RunningRouter, key: str | None = None, **fields: object) -> httpx.Response:
    headers = {} if key is None else bearer(key)
    return await router.http.post("/v1/chat/completions", json={**CHAT, **fields}, headers=headers)


async def test_without_keys_all_local_callers_are_the_local_tenant(router: RunningRouter) -> None:
    assert (await chat(router)).status_code == 200
    assert (await chat(router, "whatever")).status_code == 200
    (summary,) = await router.usage("local")
    assert (summary.group, summary.requests) == ((MODEL,), 2)


async def test_from_the_first_key_on_every_request_needs_one(router: RunningRouter) -> None:
    key = await router.new_key(await router.new_tenant())
    refusals = [await chat(router), await chat(router, "sk-wrong"), await chat(router, key[:-1] + "!")]
    assert [each.status_code for each in refusals] == [401, 401, 401]
    assert {each.json()["error"]["code"] for each in refusals} == {"invalid_api_key"}
    assert all(each.headers["www-authenticate"] == "Bearer" for each in refusals)
    assert (await chat(router, key)).status_code == 200
    assert router.pipeline.calls[-1].tenant.startswith("org-")


async def test_removing_the_last_key_does_not_open_the_api(router: RunningRouter) -> None:
    await router.new_key(tenant := await router.new_tenant())
    await router.parts.tenancy.administer(lambda admin: admin.delete_organisation(SYSTEM, tenant))
    assert (await chat(router)).status_code == 401
    assert (await router.http.get("/admin/tenants")).status_code == 401


async def test_health_and_the_api_description_need_no_key(router: RunningRouter) -> None:
    await router.new_key(await router.new_tenant())
    for path in ("/health/live", "/health/ready", "/openapi.json", "/docs"):
        assert (await router.http.get(path)).status_code == 200, path


async def test_metrics_need_no_key_while_there_are_none(router: RunningRouter) -> None:
    assert (await router.http.get("/metrics")).status_code == 200
    await router.new_key(await router.new_tenant())
    assert (await router.http.get("/metrics")).status_code == 401


async def test_metrics_are_open_where_the_operator_says_so() -> None:
    async with running_router(metrics_open=True) as router:
        await router.new_key(await router.new_tenant())
        assert (await router.http.get("/metrics")).status_code == 200


@pytest.mark.parametrize("is_private", [True, False])
async def test_with_keys_metrics_need_an_administrators_key(is_private: bool) -> None:
    async with running_router(is_private=is_private) as router:
        tenant = await router.new_tenant()
        usual = await router.new_key(tenant)
        watching = await router.new_key(tenant, scopes=frozenset({Scope.ADMIN_READ}))
        expected = {"nobodys": 401, usual: 403, watching: 200}
        for key, status in expected.items():
            assert (await router.http.get("/metrics", headers=bearer(key))).status_code == status
        assert (await router.http.get("/health/live")).status_code == 200


async def test_unknown_revoked_and_malformed_keys_get_the_same_answer(router: RunningRouter) -> None:
    tenant = await router.new_tenant()
    key, other = await router.new_key(tenant), await router.new_key(tenant)

    def revoke(admin: Administration) -> None:
        (found,) = (each for each in admin.list_keys(SYSTEM, tenant) if each.prefix in key)
        admin.revoke_key(SYSTEM, tenant, found.id)

    await router.parts.tenancy.administer(revoke)
    unknown = f"ik-{'x' * 8}-{'y' * 40}"
    answers = [await chat(router, each) for each in (key, unknown, other[:-1] + "-", "nonsense")]
    assert {(each.status_code, each.content) for each in answers} == {(401, answers[0].content)}


async def test_a_key_does_only_what_its_scopes_and_models_allow(router: RunningRouter) -> None:
    tenant = await router.new_tenant()
    reader = await router.new_key(tenant, scopes=frozenset({Scope.USAGE_READ}))
    elsewhere = await router.new_key(tenant, models=frozenset({"other"}))
    assert (await chat(router, reader)).json()["error"]["message"] == "this key lacks the scope inference"
    refusal = await chat(router, elsewhere)
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (403, "permission_denied")
    listed = await router.http.get("/v1/models", headers=bearer(elsewhere))
    assert listed.json()["data"] == []
    assert router.pipeline.calls == []


async def test_tokens_are_reserved_before_and_settled_after(router: RunningRouter) -> None:
    """Room for 100 tokens: one request may ask for all of it, and what it leaves is there for the next."""
    tenant = await router.new_tenant(limits=Limits(tokens_per_min=100, token_burst=100))
    key = await router.new_key(tenant)
    router.pipeline.script = lambda call: words("one", " two", prompt_tokens=5)
    assert (await chat(router, key, max_tokens=80)).status_code == 200
    refusal = await chat(router, key, max_tokens=88)
    assert refusal.status_code == 429
    error = refusal.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert error["message"] == "this organisation has reached its limit of tokens per minute"
    assert (
        int(refusal.headers["retry-after"]) == math.ceil(int(refusal.headers["retry-after-ms"]) / 1000) >= 1
    )
    assert (await chat(router, key, max_tokens=60)).status_code == 200


async def test_a_request_that_can_never_fit_is_refused_without_a_retry_time(router: RunningRouter) -> None:
    key = await router.new_key(await router.new_tenant(), limits=Limits(tokens_per_min=50))
    refusal = await chat(router, key, max_tokens=500)
    assert (refusal.status_code, refusal.headers.get("retry-after")) == (429, None)
    assert "this request alone exceeds the limit" in refusal.json()["error"]["message"]


async def test_concurrent_requests_are_limited_and_freed(router: RunningRouter) -> None:
    key = await router.new_key(await router.new_tenant(limits=Limits(concurrent_requests=3)))
    go_on = asyncio.Event()
    router.pipeline.script = lambda call: [go_on, *words("slow")]
    asking = [asyncio.create_task(chat(router, key)) for _ in range(12)]
    await router.until(lambda: sum(each.done() for each in asking) == 9)
    go_on.set()
    answers = await asyncio.gather(*asking)
    statuses = [each.status_code for each in answers]
    assert statuses.count(200) == 3
    assert statuses.count(429) == 9
    assert (await chat(router, key)).status_code == 200


async def test_an_exhausted_budget_refuses_and_is_never_overspent(router: RunningRouter) -> None:
    """Each answer costs 10 of 35 micro-dollars, and may cost no more."""
    price = Price(MODEL, prompt=0, cached_prompt=0, completion=1_000_000)
    await router.parts.tenancy.administer(lambda admin: admin.set_price(SYSTEM, price))
    tenant = await router.new_tenant(limits=Limits(monthly_budget=35))
    key = await router.new_key(tenant)
    router.pipeline.script = lambda call: words(*TEN)
    answers = [await chat(router, key) for _ in range(5)]
    assert [each.status_code for each in answers] == [200, 200, 200, 429, 429]
    assert answers[-1].json()["error"]["code"] == "insufficient_quota"
    (summary,) = await router.usage(tenant)
    assert (summary.requests, summary.completion_tokens, summary.cost) == (3, 30, 30)


async def test_an_interrupted_answer_is_billed_for_what_was_delivered(router: RunningRouter) -> None:
    key = await router.new_key(tenant := await router.new_tenant())
    router.pipeline.script = lambda call: slowly(*TEN, *TEN)
    async with router.http.stream(
        "POST", "/v1/chat/completions", json={**CHAT, "stream": True}, headers=bearer(key)
    ) as response:
        async for _ in response.aiter_lines():
            break
    await router.until(lambda: router.permits.open_count == 0)
    (summary,) = await router.usage(tenant)
    assert summary.requests == 1
    assert summary.prompt_tokens == 7
    assert 1 <= summary.completion_tokens < 20
    counted = router.metric("inflight_completion_tokens_total", model=MODEL, tenant=tenant)
    assert counted == summary.completion_tokens


async def test_a_request_refused_before_dispatch_is_not_recorded(router: RunningRouter) -> None:
    key = await router.new_key(tenant := await router.new_tenant())
    assert (await chat(router, key, temperature=7)).status_code == 400
    router.permits.drain()
    assert (await chat(router, key)).status_code == 503
    assert await router.usage(tenant) == []
    assert router.parts.tenancy.ledger.running(tenant) == 0


async def test_a_failed_request_is_recorded_and_costs_nothing(router: RunningRouter) -> None:
    price = Price(MODEL, prompt=1_000_000, cached_prompt=0, completion=1_000_000)
    await router.parts.tenancy.administer(lambda admin: admin.set_price(SYSTEM, price))
    key = await router.new_key(tenant := await router.new_tenant(limits=Limits(monthly_budget=1000)))
    broken = InflightError(ErrorKind.ENGINE_FAILED, "the engine broke")
    router.pipeline.script = lambda call: [*words(*TEN)[:-1], broken]
    assert (await chat(router, key)).status_code == 503
    (summary,) = await router.usage(tenant)
    assert (summary.requests, summary.prompt_tokens, summary.cost) == (1, 7, 0)
    router.pipeline.script = lambda call: words(*TEN)
    assert (await chat(router, key)).status_code == 200
    (summary,) = await router.usage(tenant)
    assert (summary.requests, summary.cost) == (2, 17)


async def test_a_request_that_waited_for_a_lease_while_draining_began_is_refused(
    router: RunningRouter,
) -> None:
    key = await router.new_key(tenant := await router.new_tenant(limits=Limits(monthly_budget=1000)))
    store_answers = threading.Event()
    router.parts.tenancy.worker.submit(store_answers.wait)
    waiting = asyncio.create_task(chat(router, key))
    await router.until(lambda: bool(router.parts.tenancy._waiting))
    router.permits.drain()
    assert await router.permits.empty(0)
    store_answers.set()
    assert (await waiting).status_code == 503
    assert router.pipeline.calls == []
    assert router.parts.tenancy.ledger.running(tenant) == 0


@given(limit=st.sampled_from(Limit), wait_s=st.none() | st.floats(0, 1e6), chance=st.floats(0, 1))
def test_every_refusal_has_a_sentence_and_an_honest_retry_time(
    limit: Limit, wait_s: float | None, chance: float
) -> None:
    wait_ns = None if wait_s is None else int(wait_s * NS_PER_S)
    error = refused(Refusal(limit, "org-1", wait_ns), chance)
    assert error.kind in (ErrorKind.QUOTA, ErrorKind.RATE_LIMITED, ErrorKind.OVERLOADED)
    if error.retry_after_s is not None and wait_ns is not None:
        assert wait_ns / NS_PER_S <= error.retry_after_s <= wait_ns / NS_PER_S * 1.4 + 1e-6


async def test_what_was_delivered_until_the_callers_own_guide_failed_is_paid_for(
    router: RunningRouter,
) -> None:
    price = Price(MODEL, prompt=1_000_000, cached_prompt=0, completion=1_000_000)
    await router.parts.tenancy.administer(lambda admin: admin.set_price(SYSTEM, price))
    key = await router.new_key(tenant := await router.new_tenant())
    dead_end = InflightError(ErrorKind.INVALID_REQUEST, "guided_decoding_guide: it cannot go on")
    router.pipeline.script = lambda call: [*words(*TEN)[:-1], dead_end]
    assert b"it cannot go on" in (await chat(router, key, stream=True)).content
    (summary,) = await router.usage(tenant)
    assert (summary.prompt_tokens, summary.completion_tokens) == (7, 10)
    assert summary.cost == 17
    router.pipeline.script = lambda call: [dead_end]
    assert (await chat(router, key)).status_code == 400
    (summary,) = await router.usage(tenant)
    assert (summary.requests, summary.cost) == (2, 17)  # nothing was delivered


async def test_a_request_counts_when_it_comes_however_it_ends(router: RunningRouter) -> None:
    key = await router.new_key(await router.new_tenant(limits=Limits(requests_per_min=3, tokens_per_min=50)))
    headers = bearer(key)
    assert (await chat(router, key, max_tokens=-1)).status_code == 400
    assert "limit of tokens" in (await chat(router, key, max_tokens=1000)).text
    assert (await router.http.get("/v1/conversations", headers=headers)).status_code == 200
    assert "limit of requests" in (await router.http.get("/v1/conversations", headers=headers)).text


async def test_a_request_that_the_server_has_no_room_for_is_not_counted(router: RunningRouter) -> None:
    key = await router.new_key(await router.new_tenant(limits=Limits(requests_per_min=1)))
    router.permits.draining = True
    for _ in range(3):
        assert (await chat(router, key)).status_code == 503
    router.permits.draining = False
    assert (await chat(router, key)).status_code == 200
    assert (await chat(router, key)).status_code == 429
