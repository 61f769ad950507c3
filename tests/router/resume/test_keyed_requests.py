"""Requests with an Idempotency-Key, over HTTP: one answer and one bill, whoever reads it how often."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from python_backend.wire.errors import ErrorKind, InflightError
from router.http import sse
from tests.fakes.pipeline import words
from tests.router.running import EMBEDDER, MODEL, QUESTION, RunningRouter, running_router

KEY = {"idempotency-key": "one"}
CHAT = "/v1/chat/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": MODEL, "messages": QUESTION},
    "/v1/completions": {"model": MODEL, "prompt": "hi"},
    "/v1/responses": {"model": MODEL, "input": "hi"},
    "/v1/messages": {"model": MODEL, "messages": QUESTION, "max_tokens": 9},
    "/v1/embeddings": {"model": EMBEDDER, "input": "hi"},
    "/v1/rerank": {"model": EMBEDDER, "query": "hi", "documents": ["a", "b"]},
    "/api/chat": {"model": MODEL, "messages": QUESTION, "stream": False},
}
STREAMS = [CHAT, "/v1/completions", "/v1/responses", "/v1/messages"]


@pytest.fixture
def go_on(router: RunningRouter) -> asyncio.Event:
    """Until it is set, an answer has come to its first word."""
    event = asyncio.Event()
    first, *rest = words("Hello", " world", "!")
    router.pipeline.script = lambda call: [first, event, *rest]
    return event


async def post(router: RunningRouter, path: str, more: dict[str, str] | None = None, **fields: object) -> Any:
    return await router.http.post(path, json={**BODIES[path], **fields}, headers={**KEY, **(more or {})})


async def begin(router: RunningRouter, path: str) -> tuple[httpx.Response, bytes]:
    """A stream that is cut after its first bytes."""
    request = router.http.build_request("POST", path, json={**BODIES[path], "stream": True}, headers=KEY)
    response = await router.http.send(request, stream=True)
    assert response.status_code == 200
    seen = await anext(response.aiter_raw())
    await response.aclose()
    return response, seen


async def requests_billed(router: RunningRouter) -> int:
    return sum(used.requests for used in await router.usage("local"))


async def test_a_request_that_is_sent_again_has_the_same_answer_and_is_billed_once(
    router: RunningRouter,
) -> None:
    for number, path in enumerate(BODIES, 1):
        key = {"idempotency-key": path}
        first, again = await post(router, path, key), await post(router, path, key)
        assert (first.status_code, again.status_code) == (200, 200), path
        assert again.content == first.content
        assert again.headers["x-request-id"] == first.headers["x-request-id"]
        assert "idempotent-replayed" not in first.headers
        assert again.headers["idempotent-replayed"] == "true"
        assert await requests_billed(router) == number
    other = await post(router, CHAT, {"idempotency-key": "another"})
    assert await requests_billed(router) == len(BODIES) + 1
    assert "idempotent-replayed" not in other.headers


@pytest.mark.parametrize("path", STREAMS)
async def test_a_stream_that_was_cut_goes_on_behind_its_last_event_byte_for_byte(
    router: RunningRouter, go_on: asyncio.Event, path: str
) -> None:
    _, seen = await begin(router, path)
    events = sse.split(seen)
    assert [event.split(b"\n")[0] for event in events] == [
        f"id: {number}".encode() for number in range(1, len(events) + 1)
    ]
    go_on.set()
    resumed = await post(router, path, {"last-event-id": str(len(events))}, stream=True)
    whole = await post(router, path, stream=True)
    assert whole.content == seen + resumed.content
    by_header = await post(router, path, {"x-inflight-resume": "1"}, stream=True)
    assert by_header.content == b"".join(sse.split(whole.content)[1:])
    assert len(router.pipeline.calls) == 1
    assert await requests_billed(router) == 1


async def test_who_comes_while_the_answer_is_made_joins_it(
    router: RunningRouter, go_on: asyncio.Event
) -> None:
    answers = [asyncio.ensure_future(post(router, CHAT)) for _ in range(5)]
    await router.until(lambda: bool(router.pipeline.generations))
    go_on.set()
    assert len({(await answer).content for answer in answers}) == 1
    assert len(router.pipeline.calls) == 1
    assert b"id: " not in (await router.chat(stream=True)).content  # which nobody can come back to


async def test_another_body_with_the_same_key_is_a_conflict_in_the_shape_of_each_api(
    router: RunningRouter,
) -> None:
    await post(router, CHAT)
    refused = await post(router, CHAT, seed=1)
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "idempotency_key_reused"
    assert refused.json()["error"]["type"] == "invalid_request_error"
    elsewhere = await post(router, "/v1/messages")
    assert elsewhere.status_code == 409
    assert elsewhere.json()["type"] == "error"
    assert len(router.pipeline.calls) == 1


async def test_official_clients_send_the_key_and_get_the_answer_again(router: RunningRouter) -> None:
    async with openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none") as client:
        asked: Any = {**BODIES[CHAT], "extra_headers": KEY}
        first = await client.chat.completions.create(**asked)
        assert (await client.chat.completions.create(**asked)).id == first.id
        with pytest.raises(openai.ConflictError):
            await client.chat.completions.create(**asked, seed=1)
        streamed: Any = {**asked, "extra_headers": {"idempotency-key": "s"}, "stream": True}
        chunks = [chunk async for chunk in await client.chat.completions.create(**streamed)]
        assert [chunk async for chunk in await client.chat.completions.create(**streamed)] == chunks
    async with anthropic.AsyncAnthropic(base_url=router.url, api_key="none") as claude:
        said: Any = {**BODIES["/v1/messages"], "extra_headers": {"idempotency-key": "m"}}
        message = await claude.messages.create(**said)
        assert (await claude.messages.create(**said)).id == message.id


async def test_a_key_is_known_to_its_owner_alone(router: RunningRouter) -> None:
    tenants = [await router.new_tenant(name) for name in ("acme", "other")]
    users = [
        await router.new_key(tenants[0]),
        await router.new_key(tenants[0]),
        await router.new_key(tenants[1]),
    ]
    answers = [
        await post(router, CHAT, {"authorization": f"Bearer {key}"}, seed=number)
        for number, key in enumerate(users)
    ]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert len({answer.headers["x-request-id"] for answer in answers}) == 3


async def test_what_failed_is_tried_again_with_the_same_key(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: [InflightError(ErrorKind.ENGINE_FAILED, "it broke")]
    assert (await post(router, CHAT)).status_code == 503
    assert (await post(router, CHAT, temperature=9)).status_code == 400
    router.pipeline.script = lambda call: words("well")
    assert (await post(router, CHAT)).status_code == 200


async def test_a_stream_that_failed_cannot_be_continued_but_be_asked_for_again(router: RunningRouter) -> None:
    first = words("Hello")[0]
    router.pipeline.script = lambda call: [first, InflightError(ErrorKind.ENGINE_FAILED, "it broke")]
    failed = await post(router, CHAT, stream=True)
    *events, error = failed.content.split(b"\n\n")[:-1]
    assert error.startswith(b'data: {"error"')
    refused = await post(router, CHAT, {"last-event-id": str(len(events))}, stream=True)
    assert refused.status_code == 410
    router.pipeline.script = lambda call: words("well")
    assert (await post(router, CHAT, stream=True)).content.endswith(b"data: [DONE]\n\n")


async def test_headers_that_say_nothing_are_refused(router: RunningRouter) -> None:
    for name, value, told in (
        ("idempotency-key", "x" * 256, "255 printable characters"),
        ("last-event-id", "-1", "last-event-id: expected an event id"),
        ("x-inflight-resume", "soon", "x-inflight-resume: expected an event id"),
    ):
        refused = await post(router, CHAT, {name: value})
        assert (refused.status_code, told in refused.json()["error"]["message"]) == (400, True)


async def test_a_batch_is_made_once(router: RunningRouter) -> None:
    given = {"file": ("in.jsonl", b'{"custom_id": "a"}\n')}
    file = (await router.http.post("/v1/files", files=given, data={"purpose": "batch"})).json()
    body = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
    made = [await router.http.post("/v1/batches", json=body, headers=KEY) for _ in range(2)]
    assert made[0].json()["id"] == made[1].json()["id"]
    assert len((await router.http.get("/v1/batches")).json()["data"]) == 1


@pytest.fixture
async def impatient() -> AsyncIterator[RunningRouter]:
    async with running_router(keyed_grace_s=0.1) as running:
        yield running


async def test_an_answer_that_nobody_reads_any_more_is_ended(impatient: RunningRouter) -> None:
    first = words("Hello")[0]
    impatient.pipeline.script = lambda call: [first, None]
    await begin(impatient, CHAT)
    await impatient.until(lambda: impatient.permits.open_count == 0)
    assert impatient.pipeline.generations[0].stopped
    (used,) = await impatient.usage("local")
    assert (used.requests, used.completion_tokens) == (1, 1)
    impatient.pipeline.script = lambda call: words("again")
    assert (await post(impatient, CHAT, stream=True)).status_code == 200


async def test_an_answer_that_somebody_joined_goes_on_though_the_first_left(impatient: RunningRouter) -> None:
    first, *rest = words("Hello", " world")
    impatient.pipeline.script = lambda call: [first, 0.4, *rest]
    joining = asyncio.ensure_future(begin(impatient, CHAT))
    await impatient.until(lambda: bool(impatient.pipeline.generations))
    joined = await post(impatient, CHAT, stream=True)
    await joining
    assert joined.content.endswith(b"data: [DONE]\n\n")
