"""What the router does now, told to many at once; and how requests went."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from router.core.tenant import Role, Scope
from router.telemetry.prompt_log import PromptLog
from tests.router.raw import RawClient
from tests.router.running import MODEL, RunningRouter, running_router
from tests.waiting import soon

TRACED = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01", "tracestate": "inflight=steps"}


def release_in(told: dict[str, Any]) -> dict[str, Any]:
    (model,) = (each for each in told["models"] if each["model"] == MODEL)
    release: dict[str, Any] = model["releases"][0]
    return release


async def test_a_snapshot_tells_rates_and_percentiles_of_the_last_seconds(router: RunningRouter) -> None:
    for _ in range(3):
        assert (await router.chat()).status_code == 200
    told = (await router.http.get("/admin/now")).json()
    found = release_in(told)
    assert found["requests_per_s"] > 0
    assert found["tokens_per_s"] > 0
    assert found["in_flight"] == 0
    assert 0 < found["first_token_p50_s"] <= found["first_token_p95_s"]
    assert {"tenant": "local"}.items() <= told["tenants"][0].items()
    assert {each["stage"] for each in told["stages"]} >= {"admission", "queue"}
    assert sum(each["part"] for each in told["stages"]) == pytest.approx(1)


async def test_what_was_refused_is_counted_by_status_and_route(router: RunningRouter) -> None:
    assert (await router.chat(temperature=9)).status_code == 400
    told = (await router.http.get("/admin/now")).json()
    assert {"status": 400, "route": "/v1/chat/completions", "count": 1} in told["troubles"]


async def test_the_plots_of_who_comes_later_have_what_was_before(router: RunningRouter) -> None:
    overview = router.parts.overview
    overview.look()
    await router.chat()
    overview.look()
    history = (await router.http.get("/admin/now")).json()["history"]
    assert len(history) == 2
    assert history[0]["tokens_per_s"] < history[1]["tokens_per_s"]


async def test_all_viewers_of_the_stream_get_the_same_bytes_and_leave_nothing_behind(
    router: RunningRouter,
) -> None:
    overview = router.parts.overview
    viewers = [await RawClient.connect(router.port) for _ in range(5)]
    for viewer in viewers:
        await viewer.send(b"GET /admin/now/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await router.until(lambda: overview.watchers == 5)
    await asyncio.sleep(0)
    overview.look()
    events = [await soon(viewer.reader.readuntil(b"}\n\n")) for viewer in viewers]
    bodies = {event[event.index(b"data: ") :] for event in events}
    (body,) = bodies
    assert json.loads(body[len(b"data: ") :])["router"]["watchers"] == 5
    for viewer in viewers:
        await viewer.close()

    def all_left() -> bool:
        overview.look()
        return overview.watchers == 0

    await router.until(all_left)


async def test_a_stream_ends_when_the_router_drains(router: RunningRouter) -> None:
    viewer = await RawClient.connect(router.port)
    await viewer.send(b"GET /admin/now/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await router.until(lambda: router.parts.overview.watchers == 1)
    router.permits.drain()

    def has_ended() -> bool:
        router.parts.overview.look()
        return router.parts.overview.watchers == 0

    await router.until(has_ended)
    await viewer.close()


async def test_recent_requests_are_listed_newest_first_and_filtered(router: RunningRouter) -> None:
    await router.chat()
    await router.chat(model="nobody")
    await router.complete()
    rows = (await router.http.get("/admin/requests")).json()["data"]
    assert [(row["route"], row["status"]) for row in rows] == [
        ("/v1/completions", 200),
        ("/v1/chat/completions", 404),
        ("/v1/chat/completions", 200),
    ]
    assert rows[0]["model"] == MODEL
    assert rows[0]["completion_tokens"] > 0
    for query, expected in (
        ("failed=true", 1),
        ("status=200", 2),
        ("slower_than_ms=60000", 0),
        ("limit=1", 1),
    ):
        found = (await router.http.get(f"/admin/requests?{query}")).json()["data"]
        assert len(found) == expected, query
    assert (await router.http.get("/admin/requests?status=9")).status_code == 400


async def test_a_request_is_shown_stage_by_stage(router: RunningRouter) -> None:
    answer = await router.chat()
    shown = (await router.http.get(f"/v1/requests/{answer.headers['x-request-id']}")).json()
    assert shown["id"] == answer.headers["x-request-id"]
    assert [each["name"] for each in shown["stages"]][:2] == ["admission", "queue"]
    ends = [each["end_ms"] for each in shown["stages"]]
    assert ends == sorted(ends)
    assert ends[-1] == pytest.approx(shown["total_ms"], abs=0.01)
    assert shown["trace_id"] is None
    assert (await router.http.get("/v1/requests/req-nobody")).status_code == 404


async def test_a_request_that_asks_for_it_is_traced_here_without_a_collector(router: RunningRouter) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    answer = await router.http.post("/v1/chat/completions", json=body, headers=TRACED)
    shown = (await router.http.get(f"/v1/requests/{answer.headers['x-request-id']}")).json()
    assert shown["trace_id"] == "ab" * 16
    assert router.pipeline.calls[-1].trace is not None
    (await router.chat()).raise_for_status()
    assert router.pipeline.calls[-1].trace is None


async def test_requests_are_shown_to_their_user_their_tenants_admins_and_the_platform(
    router: RunningRouter,
) -> None:
    ours, theirs = await router.new_tenant("ours"), await router.new_tenant("theirs")
    every = frozenset(Scope)
    keys = {
        "member": await router.new_key(ours, every),
        "colleague": await router.new_key(ours, every),
        "owner": await router.new_key(ours, every, Role.OWNER),
        "stranger": await router.new_key(theirs, every, Role.OWNER),
        "platform": await router.new_key(theirs, every, platform_admin=True),
    }
    headers = {name: {"authorization": f"Bearer {key}"} for name, key in keys.items()}
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    answer = await router.http.post("/v1/chat/completions", json=body, headers=headers["member"])
    request = answer.headers["x-request-id"]

    async def statuses(path: str) -> dict[str, int]:
        return {
            name: (await router.http.get(path, headers=each)).status_code for name, each in headers.items()
        }

    assert await statuses(f"/v1/requests/{request}") == {
        "member": 200, "colleague": 404, "owner": 404, "stranger": 404, "platform": 404,
    }  # fmt: skip
    assert await statuses(f"/admin/requests/{request}") == {
        "member": 403, "colleague": 403, "owner": 200, "stranger": 403, "platform": 200,
    }  # fmt: skip
    listed = {
        name: (await router.http.get("/admin/requests", headers=headers[name])).json()["data"]
        for name in ("owner", "stranger", "platform")
    }
    assert {name: {row["tenant"] for row in rows} for name, rows in listed.items()}["owner"] == {ours}
    assert request not in {row["id"] for row in listed["stranger"]}
    assert request in {row["id"] for row in listed["platform"]}
    other = await router.http.get(f"/admin/requests?tenant={theirs}", headers=headers["owner"])
    assert other.status_code == 403


async def test_strangers_push_no_request_out_of_the_list(router: RunningRouter) -> None:
    await router.new_key(await router.new_tenant())
    for _ in range(3):
        assert (await router.http.get("/v1/models")).status_code == 401
        assert (await router.http.get("/nowhere")).status_code == 404
    assert not list(router.parts.recent._ended)


async def test_stored_content_is_for_owners_and_the_platform_and_each_look_is_on_record(
    tmp_path: Path,
) -> None:
    log = PromptLog(tmp_path / "log", 7)
    log.start()
    async with running_router(prompt_log=log) as router:
        ours = await router.new_tenant("ours")
        every = frozenset(Scope)
        keys = {
            "member": await router.new_key(ours, every),
            "admin": await router.new_key(ours, every, Role.ADMIN),
            "owner": await router.new_key(ours, every, Role.OWNER),
            "stranger": await router.new_key(await router.new_tenant("theirs"), every, Role.OWNER),
            "platform": await router.new_key(ours, every, platform_admin=True),
        }
        headers = {name: {"authorization": f"Bearer {key}"} for name, key in keys.items()}
        body = {"model": MODEL, "messages": [{"role": "user", "content": "mail ann@example.org"}]}
        answer = await router.http.post("/v1/chat/completions", json=body, headers=headers["member"])
        request = answer.headers["x-request-id"]
        await asyncio.to_thread(log.stop)
        path = f"/admin/requests/{request}/content"
        told = {name: await router.http.get(path, headers=each) for name, each in headers.items()}
        assert {name: each.status_code for name, each in told.items()} == {
            "member": 403, "admin": 403, "owner": 200, "stranger": 403, "platform": 200,
        }  # fmt: skip
        found = told["owner"].json()
        assert "mail [redacted email]" in found["prompts"][0]
        assert found["answers"] == [answer.json()["choices"][0]["message"]["content"]]
        audit = await router.http.get("/admin/audit?limit=1000", headers=headers["platform"])
        looks = [each for each in audit.json()["data"] if each["action"] == "request.read_content"]
        assert sorted(each["allowed"] for each in looks) == [False, False, False, True, True]
        assert {each["target"] for each in looks} == {request}


async def test_where_nothing_is_kept_there_is_no_content(router: RunningRouter) -> None:
    answer = await router.chat()
    found = await router.http.get(f"/admin/requests/{answer.headers['x-request-id']}/content")
    assert found.status_code == 404
    assert "prompt_log_dir is not set" in found.json()["error"]["message"]
