"""A large body is asked about before it is read: who sends it, whether it may, and whether there is room."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from router.core.tenant import NOBODY, Scope
from router.core.tenant import Limits as TenantLimits
from router.http.connection import Limits
from tests.router.raw import RawClient, chat_request, post
from tests.router.running import MODEL, RunningRouter, running_router

SIZE = 100_000
CHAT = "/v1/chat/completions"
LARGE = {"model": MODEL, "messages": [{"role": "user", "content": "x" * 50_000}]}
LIMITS = Limits(max_body_bytes=SIZE, max_arriving_bytes=8 * SIZE, linger_s=0.1)


@pytest.fixture
async def router() -> AsyncIterator[RunningRouter]:
    async with running_router(LIMITS) as running:
        yield running
        await running.until(lambda: running.listener.memory.taken == 0)


def head(key: str, *more: str, path: str = CHAT, size: int = SIZE) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    length = f"Content-Length: {size}" if size else "Transfer-Encoding: chunked"
    return "\r\n".join([*lines, f"Authorization: Bearer {key}", length, *more, "", ""]).encode()


async def ask(router: RunningRouter, data: bytes) -> tuple[int, dict[str, str], bytes]:
    client = await RawClient.connect(router.port)
    await client.send(data)
    reply = await client.reply()
    assert await client.closed()
    await client.close()
    return reply.status, reply.headers, reply.body


async def test_an_unknown_caller_is_refused_before_its_body_is_read(router: RunningRouter) -> None:
    await router.new_key(await router.new_tenant())
    status, headers, body = await ask(router, head("sk-unknown"))
    assert status == 401
    assert headers["www-authenticate"] == "Bearer"
    assert headers["x-request-id"]
    assert json.loads(body)["error"]["code"] == "invalid_api_key"
    assert (
        router.metric(
            "inflight_requests_total", route=CHAT, status="401", model="", tenant=NOBODY.organisation.id
        )
        == 1
    )


async def test_a_body_in_chunks_is_asked_about_as_soon_as_it_is_large(router: RunningRouter) -> None:
    await router.new_key(await router.new_tenant())
    chunk = b"8000\r\n" + b" " * 0x8000 + b"\r\n"
    status, _, _ = await ask(router, head("sk-unknown", size=0) + chunk + b"1\r\n \r\n")
    assert status == 401


async def test_a_caller_without_requests_left_is_refused_before_its_body_is_read(
    router: RunningRouter,
) -> None:
    key = await router.new_key(await router.new_tenant(limits=TenantLimits(requests_per_min=1)))
    sent = chat_request().replace(b"Host:", f"Authorization: Bearer {key}\r\nHost:".encode(), 1)
    client = await RawClient.connect(router.port)
    await client.send(sent)
    assert (await client.reply()).status == 200
    await client.close()
    for path in (CHAT, "/v1/batches"):
        status, headers, body = await ask(router, head(key, path=path))
        assert (status, json.loads(body)["error"]["type"]) == (429, "rate_limit_error")
        assert int(headers["retry-after"]) > 0


async def test_a_key_without_the_scope_is_refused_before_its_body_is_read(router: RunningRouter) -> None:
    key = await router.new_key(await router.new_tenant(), frozenset({Scope.EMBEDDINGS}))
    status, _, body = await ask(router, head(key))
    assert (status, json.loads(body)["error"]["message"]) == (403, "this key lacks the scope inference")


async def test_a_web_page_of_another_origin_is_refused_before_its_body_is_read(router: RunningRouter) -> None:
    status, _, _ = await ask(router, head("", "Origin: https://evil.example"))
    assert status == 403


async def test_a_refused_caller_is_not_told_to_go_on(router: RunningRouter) -> None:
    await router.new_key(await router.new_tenant())
    client = await RawClient.connect(router.port)
    await client.send(head("sk-unknown", "Expect: 100-continue"))
    assert (await client.reply()).status == 401
    await client.close()


async def test_who_may_send_a_large_body_is_answered_as_ever(router: RunningRouter) -> None:
    key = await router.new_key(await router.new_tenant())
    client = await RawClient.connect(router.port)
    for _ in range(2):
        body = json.dumps(LARGE).encode()
        await client.send(head(key, size=len(body)) + body)
        assert (await client.reply()).status == 200
    await client.close()
    assert router.listener.memory.taken == 0


async def test_a_bare_key_is_as_good_before_a_body_is_read_and_errors_are_in_the_apis_own_shape(
    router: RunningRouter,
) -> None:
    key = await router.new_key(await router.new_tenant())
    body = json.dumps({**LARGE, "max_tokens": 8}).encode()
    for given, status in ((key, 200), ("sk-unknown", 401)):
        headers = {"x-api-key": given, "content-type": "application/json"}
        answer = await router.http.post("/v1/messages", content=body, headers=headers)
        assert answer.status_code == status
    assert answer.json()["error"]["type"] == "authentication_error"


async def test_arriving_bodies_of_one_tenant_leave_memory_for_others(router: RunningRouter) -> None:
    greedy, other = [await router.new_key(await router.new_tenant(name)) for name in ("greedy", "other")]
    clients = [await RawClient.connect(router.port) for _ in range(6)]
    for client in clients[:5]:
        await client.send(head(greedy) + b" " * 1000)
    assert (await clients[4].reply()).status == 503
    assert router.listener.memory.taken == 4 * SIZE
    await clients[5].send(head(other) + b" " * 1000)
    await router.until(lambda: router.listener.memory.taken == 5 * SIZE)
    for client in clients:
        await client.close()
    await router.until(lambda: router.listener.memory.taken == 0)


async def test_a_body_behind_another_request_holds_memory_until_its_client_leaves(
    router: RunningRouter,
) -> None:
    router.pipeline.script = lambda call: [None]
    client = await RawClient.connect(router.port)
    await client.send(chat_request() + post(CHAT, LARGE))
    await router.until(lambda: router.listener.memory.taken == len(json.dumps(LARGE)))
    await client.close()
    await router.until(lambda: router.listener.memory.taken == 0)


async def test_a_body_behind_another_request_is_answered_in_its_turn(router: RunningRouter) -> None:
    client = await RawClient.connect(router.port)
    await client.send(chat_request() + post(CHAT, LARGE) + chat_request())
    assert [(await client.reply()).status for _ in range(3)] == [200, 200, 200]
    await client.close()
