"""POST /v1/embeddings through a whole router: calls in parallel, their order, their end and their price."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.embedding import CALLS_AT_ONCE, ROWS_PER_CALL, EmbeddingCall
from router.core.tenant import Limits, Price, Scope
from router.http.exchange import Exchange
from router.request.embedding_calls import MAX_TOTAL_TOKENS
from router.tenants.rbac import SYSTEM
from tests.fakes.embedder import vector
from tests.router.raw import RawClient, post
from tests.router.running import EMBEDDER, MODEL, RunningRouter

LONG_LIST = [f"text number {number}" for number in range(10 * ROWS_PER_CALL + 3)]


async def embed(router: RunningRouter, value: Any, **fields: Any) -> httpx.Response:
    body = {"model": EMBEDDER, "input": value, **fields}
    return await router.http.post("/v1/embeddings", json=body)


async def test_a_long_list_comes_back_in_order_from_a_few_calls_at_once(router: RunningRouter) -> None:
    response = await embed(router, LONG_LIST, dimensions=5)
    assert response.status_code == 200
    body = response.json()
    assert [item["index"] for item in body["data"]] == list(range(len(LONG_LIST)))
    assert [item["embedding"] for item in body["data"]] == [vector(text, 5) for text in LONG_LIST]
    tokens = sum(len(text) + 2 for text in LONG_LIST)
    assert body["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert body["model"] == EMBEDDER
    assert [len(call.rows) for call in router.embedder.calls] == [ROWS_PER_CALL] * 10 + [3]
    assert router.embedder.most_under_way == CALLS_AT_ONCE
    assert response.headers["x-request-id"].startswith("embd-")


async def test_tokens_and_requests_of_embeddings_are_counted(router: RunningRouter) -> None:
    response = await embed(router, ["abc", "defg"])
    assert response.json()["usage"]["total_tokens"] == 11
    who = {"model": EMBEDDER, "tenant": "local"}
    assert router.metric("inflight_prompt_tokens_total", **who) == 11
    assert router.metric("inflight_requests_ended_total", outcome="finished", **who) == 1
    assert router.metric("inflight_requests_in_flight", **who) == 0
    assert router.embedder.tenants == {"local"}


async def test_embeddings_have_their_own_scope_and_price(router: RunningRouter) -> None:
    price = Price(EMBEDDER, prompt=1_000_000, cached_prompt=0, completion=0)
    await router.parts.tenancy.administer(lambda admin: admin.set_price(SYSTEM, price))
    tenant = await router.new_tenant(limits=Limits(tokens_per_min=40))
    key = await router.new_key(tenant, frozenset({Scope.EMBEDDINGS}))
    other = await router.new_key(tenant, frozenset({Scope.INFERENCE}))
    body = {"model": EMBEDDER, "input": ["abc", "defg"]}
    answers = [
        await router.http.post("/v1/embeddings", json=body, headers={"authorization": f"Bearer {each}"})
        for each in (other, key, key, key, key)
    ]
    assert [answer.status_code for answer in answers] == [403, 200, 200, 200, 429]
    (summary,) = await router.usage(tenant)
    assert (summary.requests, summary.prompt_tokens, summary.cost) == (3, 33, 33)


async def test_an_embedding_request_is_settled_before_its_answer_leaves(
    router: RunningRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: list[int] = []

    def respond(exchange: Exchange, status: int, body: bytes, headers: Any) -> None:
        running.append(router.parts.tenancy.ledger.running("local"))
        send(exchange, status, body, headers)

    send = Exchange.respond
    monkeypatch.setattr(Exchange, "respond", respond)
    assert (await embed(router, ["one"])).status_code == 200
    assert running == [0]


async def test_a_client_that_disconnects_stops_its_embedding_calls(router: RunningRouter) -> None:
    router.embedder.hold()
    client = await RawClient.connect(router.port)
    await client.send(post("/v1/embeddings", {"model": EMBEDDER, "input": LONG_LIST}))
    await router.until(lambda: router.embedder.under_way == CALLS_AT_ONCE)
    await client.close()
    await router.until(lambda: router.permits.open_count == 0)
    assert router.embedder.cancelled == CALLS_AT_ONCE
    assert len(router.embedder.calls) == CALLS_AT_ONCE, "no further call is made"
    who = {"model": EMBEDDER, "tenant": "local"}
    assert router.metric("inflight_requests_ended_total", outcome="cancelled", **who) == 1


async def test_a_shutdown_ends_embedding_calls_with_a_503(router: RunningRouter) -> None:
    router.embedder.hold()
    asked = asyncio.ensure_future(embed(router, LONG_LIST))
    await router.until(lambda: router.embedder.under_way == CALLS_AT_ONCE)
    router.permits.cut_all(lambda: InflightError(ErrorKind.OVERLOADED, "the server is shutting down"))
    response = await asked
    assert response.status_code == 503
    assert response.json()["error"]["message"] == "the server is shutting down"


async def test_one_failed_call_fails_the_request_and_cancels_the_other_calls(router: RunningRouter) -> None:
    def fail(call: EmbeddingCall) -> Exception | None:
        second = call.rows[0] == LONG_LIST[ROWS_PER_CALL]
        return (
            InflightError(ErrorKind.ENGINE_FAILED, "the model cannot answer at the moment")
            if second
            else None
        )

    router.embedder.fail = fail
    response = await embed(router, LONG_LIST)
    assert response.status_code == 503
    assert "retry-after" in response.headers
    assert len(router.embedder.calls) < 11
    assert router.embedder.under_way == 0
    assert router.metric("inflight_triton_errors_total", kind="engine_failed", model=EMBEDDER) == 1
    assert (await embed(router, "again")).status_code == 200


async def test_an_internal_error_is_a_500_without_its_message(router: RunningRouter) -> None:
    router.embedder.fail = lambda call: RuntimeError("a secret")
    response = await embed(router, ["a"])
    assert response.status_code == 500
    assert "secret" not in response.text


async def test_a_request_that_exceeds_its_token_limit_is_ended_midway(router: RunningRouter) -> None:
    router.embedder.tokens = lambda row: MAX_TOTAL_TOKENS // 40
    response = await embed(router, LONG_LIST)
    assert response.status_code == 400
    assert "tokens in total; allowed: at most 300000 per request" in response.json()["error"]["message"]
    assert len(router.embedder.calls) < 11


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_text_of_a_model_for_embeddings_is_refused_with_the_right_path(
    router: RunningRouter, path: str
) -> None:
    body: dict[str, Any] = {"model": EMBEDDER, "prompt": "hi"}
    if "chat" in path:
        body = {"model": EMBEDDER, "messages": [{"role": "user", "content": "hi"}]}
    response = await router.http.post(path, json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["message"] == f"The model '{EMBEDDER}' makes embeddings and no text; use /v1/embeddings"
    assert error["param"] == "model"


async def test_embeddings_of_a_text_model_are_refused_with_a_model_that_makes_them(
    router: RunningRouter,
) -> None:
    response = await router.http.post("/v1/embeddings", json={"model": MODEL, "input": "hi"})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == (
        f"The model '{MODEL}' generates text, by /v1/chat/completions or /v1/completions, and makes no "
        f"embeddings; use '{EMBEDDER}' instead"
    )
    response = await router.http.post("/v1/embeddings", json={"model": "other", "input": "hi"})
    assert response.status_code == 404
    assert router.embedder.calls == []


async def test_an_embedding_model_is_listed_among_the_models(router: RunningRouter) -> None:
    assert (await router.http.get(f"/v1/models/{EMBEDDER}")).json()["id"] == EMBEDDER


async def test_the_official_client_reads_both_encodings_and_the_errors(router: RunningRouter) -> None:
    async with openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0) as client:
        plain = await client.embeddings.create(model=EMBEDDER, input=LONG_LIST, encoding_format="float")
        packed = await client.embeddings.create(model=EMBEDDER, input=[[1, 2], [3]])
        with pytest.raises(openai.BadRequestError, match="allowed: 1 to 8"):
            await client.embeddings.create(model=EMBEDDER, input="a", dimensions=9)
    assert [item.embedding for item in plain.data] == [vector(text, 8) for text in LONG_LIST]
    assert [item.embedding for item in packed.data] == [vector([1, 2], 8), vector([3], 8)]
