"""What a web page that somebody has open can do to a router: attacks as a browser would send them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from router.core.tenant import Role, Scope
from router.request.web_pages import WebPages
from tests.router.raw import RawClient, Reply
from tests.router.running import MODEL, QUESTION, RunningRouter, running_router

FRIEND = "https://chat.example.org"
STRANGER = "https://evil.example"
CHAT = {"model": MODEL, "messages": QUESTION}
FORM = (
    b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nhi\r\n--x--\r\n'
)


@pytest.fixture
async def open_to_a_friend() -> AsyncIterator[RunningRouter]:
    async with running_router(pages=WebPages(origins=frozenset({FRIEND}))) as running:
        yield running


async def administrators_key(router: RunningRouter) -> dict[str, str]:
    key = await router.new_key(await router.new_tenant(), frozenset(Scope), Role.OWNER, platform_admin=True)
    return {"authorization": f"Bearer {key}"}


async def sent(router: RunningRouter, request: bytes) -> Reply:
    client = await RawClient.connect(router.port)
    try:
        await client.send(request)
        return await client.reply()
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/admin/tenants"),
        ("POST", "/admin/tenants"),
        ("GET", "/v1/models"),
        ("GET", "/health/live"),
        ("GET", "/metrics"),
        ("GET", "/nowhere"),
    ],
)
async def test_a_name_that_was_rebound_to_this_machine_gets_nothing_without_keys(
    router: RunningRouter, method: str, path: str
) -> None:
    reply = await router.http.request(method, path, headers={"host": "evil.example"}, json={"name": "mine"})
    assert reply.status_code == 421
    assert "allowed_hosts" in reply.json()["error"]["message"]
    assert [each["name"] for each in (await router.http.get("/admin/tenants")).json()["data"]] == ["local"]


async def test_with_keys_any_name_is_served(router: RunningRouter) -> None:
    headers = {**(await administrators_key(router)), "host": "llm.example.org"}
    assert (await router.http.get("/admin/tenants", headers=headers)).status_code == 200


async def test_a_page_cannot_store_a_file_by_a_form(router: RunningRouter) -> None:
    headers = {"content-type": "multipart/form-data; boundary=x"}
    from_a_page = {**headers, "origin": STRANGER, "sec-fetch-site": "cross-site"}
    assert (await router.http.post("/v1/files", content=FORM, headers=from_a_page)).status_code == 403
    assert (await router.http.get("/v1/files")).json()["data"] == []
    assert (await router.http.post("/v1/files", content=FORM, headers=headers)).status_code == 200


@pytest.mark.parametrize("sent", [{"origin": STRANGER}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}])
async def test_a_page_cannot_order_administrative_acts_by_a_request_without_a_body(
    router: RunningRouter, sent: dict[str, str]
) -> None:
    path = "/admin/models/tiny/releases/1/load"
    refused = await router.http.post(path, headers=sent)
    assert (refused.status_code, refused.json()["error"]["type"]) == (403, "permission_error")
    assert (await router.http.post(path)).status_code != 403


async def test_a_page_changes_nothing_even_where_it_knows_a_key(router: RunningRouter) -> None:
    headers = {**(await administrators_key(router)), "origin": STRANGER}
    refused = await router.http.post("/admin/tenants", json={"name": "mine"}, headers=headers)
    assert refused.status_code == 403
    read = await router.http.get("/admin/tenants", headers=headers)
    assert read.status_code == 200
    assert "access-control-allow-origin" not in read.headers
    assert "mine" not in read.text


async def test_pages_of_allowed_origins_read_answers_streams_and_errors(
    open_to_a_friend: RunningRouter,
) -> None:
    http, headers = open_to_a_friend.http, {"origin": FRIEND, "sec-fetch-site": "cross-site"}
    path = "/v1/chat/completions"
    answers = [
        await http.post(path, json=CHAT, headers=headers),
        await http.post(path, json={**CHAT, "stream": True}, headers=headers),
        await http.post(path, json={}, headers=headers),
        await http.post(path, content=b"x", headers=headers),
        await http.post(path, content=b"x" * (1 << 21), headers=headers),
        await http.get("/nowhere", headers=headers),
        await http.get("/v1/completions", headers=headers),
    ]
    assert [each.status_code for each in answers] == [200, 200, 400, 415, 413, 404, 405]
    assert {each.headers["access-control-allow-origin"] for each in answers} == {FRIEND}
    assert all("x-request-id" in each.headers["access-control-expose-headers"] for each in answers)
    stranger = await http.post(path, json=CHAT, headers={"origin": STRANGER})
    assert stranger.status_code == 403
    assert "access-control-allow-origin" not in stranger.headers


async def test_a_browser_that_asks_first_is_told_what_an_allowed_page_may_send(
    open_to_a_friend: RunningRouter,
) -> None:
    asks = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-lang",
    }
    path = "/v1/completions"
    answer = await open_to_a_friend.http.options(path, headers={**asks, "origin": FRIEND})
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == FRIEND
    assert answer.headers["access-control-allow-methods"] == "POST"
    assert answer.headers["access-control-allow-headers"] == asks["access-control-request-headers"]
    assert "access-control-allow-credentials" not in answer.headers
    refused = await open_to_a_friend.http.options(path, headers={**asks, "origin": STRANGER})
    assert refused.status_code == 403
    assert not [name for name in refused.headers if name.startswith("access-control")]
    await open_to_a_friend.new_key(await open_to_a_friend.new_tenant())
    with_keys = await open_to_a_friend.http.options(path, headers={**asks, "origin": FRIEND})
    assert with_keys.status_code == 204, "a browser that asks first sends no key"


async def test_by_default_no_page_may_read_anything(router: RunningRouter) -> None:
    asks = {"origin": FRIEND, "access-control-request-method": "POST"}
    await router.new_key(await router.new_tenant())
    refused = await router.http.options("/v1/chat/completions", headers=asks)
    assert refused.status_code == 405
    assert not [name for name in refused.headers if name.startswith("access-control")]


async def test_administrative_bodies_are_json(router: RunningRouter) -> None:
    body = json.dumps({"name": "mine"}).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        refused = await router.http.post("/admin/tenants", content=body, headers={"content-type": kind})
        assert refused.status_code == 415
    assert (await router.http.post("/admin/tenants", content=body)).status_code == 415
    assert (await router.http.post("/admin/tenants", json={"name": "mine"})).status_code == 201


async def test_the_health_of_a_router_is_told_to_an_old_prober_without_a_host(router: RunningRouter) -> None:
    assert (await sent(router, b"GET /health/live HTTP/1.0\r\n\r\n")).status == 200
