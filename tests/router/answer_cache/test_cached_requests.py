"""Cached answers, over HTTP."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.tenant import Limits, Price
from router.routing.models import Snapshot
from router.routing.split import ModelSplit
from router.tenants.rbac import SYSTEM
from tests.fakes.pipeline import words
from tests.router.chat.pictures import data_url, picture, seer
from tests.router.running import EMBEDDER, MODEL, QUESTION, RunningRouter, running_router

ASKED = {"cache-control": "max-age=60"}
CACHES = Limits(answers_cached_s=600)
CHAT = "/v1/chat/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": MODEL, "messages": QUESTION},
    "/v1/completions": {"model": MODEL, "prompt": "hi"},
    "/v1/messages": {"model": MODEL, "messages": QUESTION, "max_tokens": 9},
    "/v1/embeddings": {"model": EMBEDDER, "input": "hi"},
    "/api/chat": {"model": MODEL, "messages": QUESTION, "stream": False},
}


async def new_key(router: RunningRouter, name: str = "acme", limits: Limits = CACHES) -> str:
    return await router.new_key(await router.new_tenant(name, limits))


async def ask(
    router: RunningRouter, key: str, headers: dict[str, str] | None = None, path: str = CHAT, **fields: object
) -> httpx.Response:
    known = {"authorization": f"Bearer {key}", **(ASKED if headers is None else headers)}
    return await router.http.post(path, json={**BODIES[path], **fields}, headers=known)


def outcome(response: httpx.Response) -> str | None:
    assert response.status_code == 200, response.text
    found: str | None = response.headers.get("x-inflight-cache")
    return found


@pytest.mark.parametrize("path", BODIES)
async def test_the_same_request_gets_the_same_answer_without_asking_the_model(
    router: RunningRouter, path: str
) -> None:
    key = await new_key(router)
    first, again = await ask(router, key, path=path), await ask(router, key, path=path)
    assert (outcome(first), outcome(again)) == ("miss", "hit")
    assert again.content == first.content
    assert again.headers["content-type"] == first.headers["content-type"]
    assert again.headers["x-request-id"] != first.headers["x-request-id"]
    assert int(again.headers["age"]) >= 0
    counts = router.parts.cached.counts[BODIES[path]["model"]]
    assert (counts.hits, counts.misses) == (1, 1)
    assert counts.saved_tokens > 0


async def test_a_stream_comes_again_byte_for_byte(router: RunningRouter) -> None:
    key = await new_key(router)
    first, again = [await ask(router, key, stream=True) for _ in range(2)]
    assert (outcome(first), outcome(again)) == ("miss", "hit")
    assert again.content == first.content
    assert outcome(await ask(router, key)) == "miss"  # as a stream is not as a whole


async def test_nothing_is_cached_unless_tenant_and_request_ask_for_it(router: RunningRouter) -> None:
    silent, other = await new_key(router), await new_key(router, "other", Limits())
    for key, headers in ((silent, {}), (other, ASKED), (silent, {"cache-control": "no-store, max-age=9"})):
        assert [outcome(await ask(router, key, headers)) for _ in range(2)] == [None, None]
    assert len(router.parts.cached.kept) == 0


async def test_one_tenant_never_gets_what_another_was_told(router: RunningRouter) -> None:
    one, other = await new_key(router), await new_key(router, "other")
    assert outcome(await ask(router, one)) == "miss"
    assert outcome(await ask(router, other)) == "miss"
    assert [outcome(await ask(router, key)) for key in (one, other)] == ["hit", "hit"]


async def test_a_key_that_may_not_use_the_model_gets_nothing_of_it_from_the_cache(
    router: RunningRouter,
) -> None:
    tenant = await router.new_tenant("acme", CACHES)
    key = await router.new_key(tenant)
    narrow = await router.new_key(tenant, models=frozenset({EMBEDDER}))
    assert outcome(await ask(router, key)) == "miss"
    assert (await ask(router, narrow)).status_code in (403, 404)


async def test_no_cache_asks_the_model_and_renews_what_is_kept(router: RunningRouter) -> None:
    key = await new_key(router)
    await ask(router, key)
    router.pipeline.script = lambda call: words("another")
    fresh = await ask(router, key, {"cache-control": "no-cache"})
    again = await ask(router, key)
    assert (outcome(fresh), outcome(again)) == ("miss", "hit")
    assert again.content == fresh.content


async def test_only_if_cached_asks_no_model(router: RunningRouter) -> None:
    key = await new_key(router)
    refused = await ask(router, key, {"cache-control": "only-if-cached"})
    assert refused.status_code == 504
    assert "only-if-cached" in refused.json()["error"]["message"]
    await ask(router, key)
    assert outcome(await ask(router, key, {"cache-control": "only-if-cached"})) == "hit"


async def test_an_answer_that_failed_is_not_kept(router: RunningRouter) -> None:
    key = await new_key(router)
    failure = InflightError(ErrorKind.ENGINE_FAILED, "gone")
    router.pipeline.script = lambda call: [words("half", "whole")[0], failure]
    for stream in (True, False):
        await ask(router, key, stream=stream)
    assert len(router.parts.cached.kept) == 0


async def test_what_is_to_be_stored_is_asked_of_the_model(router: RunningRouter) -> None:
    key = await new_key(router)
    assert [outcome(await ask(router, key, store=True)) for _ in range(2)] == [None, None]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_names_are_the_same_however_they_are_escaped(router: RunningRouter, path: str) -> None:
    """What is not cached is decided from what the body says, not from how it says it."""
    key = await new_key(router)
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json", **ASKED}
    body = json.dumps({**BODIES[path], "stor_": True}).replace("stor_", "stor\\u0065")
    answers = [await router.http.post(path, content=body, headers=headers) for _ in range(2)]
    assert "x-inflight-cache" not in {name for each in answers for name in each.headers}


async def test_what_a_deleted_file_said_does_not_come_back_however_its_name_is_escaped(
    router: RunningRouter,
) -> None:
    key = await new_key(router)
    headers = {"authorization": f"Bearer {key}"}
    form: dict[str, Any] = {"purpose": (None, "user_data"), "file": ("a.txt", b"secret")}
    made = await router.http.post("/v1/files", files=form, headers=headers)
    part = {"type": "file", "file": {"file_id": made.json()["id"]}}
    asked = {"model": MODEL, "messages": [{"role": "user", "content": [part]}]}
    body = json.dumps(asked).replace("file_id", "file\\u005fid")
    headers |= {"content-type": "application/json", **ASKED}
    assert outcome(await router.http.post(CHAT, content=body, headers=headers)) is None
    await router.http.delete(f"/v1/files/{made.json()['id']}", headers=headers)
    assert (await router.http.post(CHAT, content=body, headers=headers)).status_code == 404


async def test_words_that_are_names_elsewhere_do_not_keep_an_answer_from_the_cache(
    router: RunningRouter,
) -> None:
    key = await new_key(router)
    said = [{"role": "user", "content": '"file_id" "store": true "url": "https://a.org"'}]
    assert [outcome(await ask(router, key, messages=said)) for _ in range(2)] == ["miss", "hit"]


class Web:
    async def fetch(self, url: str, tenant: str, where: str) -> bytes:
        return picture()


async def test_an_image_is_part_of_the_request_unless_another_host_may_change_it() -> None:
    async with running_router(others=[seer()], image_hosts=Web()) as router:
        key = await new_key(router)
        outcomes = []
        for colour in ("red", "red", "blue"):
            outcomes.append(outcome(await ask(router, key, **showing(data_url(picture(colour=colour))))))
        assert outcomes == ["miss", "hit", "miss"]
        fetched = [await ask(router, key, **showing("https://a.org/x.png")) for _ in range(2)]
        assert [outcome(each) for each in fetched] == [None, None]


def showing(url: str) -> dict[str, Any]:
    image = {"type": "image_url", "image_url": {"url": url}}
    return {"model": "seer", "messages": [{"role": "user", "content": [image]}]}


async def test_while_two_releases_share_the_traffic_nothing_is_told_from_the_cache(
    router: RunningRouter,
) -> None:
    key = await new_key(router)
    await ask(router, key)
    published = router.parts.models.published
    before = published.current
    lineup = before.lineups[MODEL]
    split = ModelSplit(MODEL, ((1, 0.5), (2, 0.5)), "salt")
    published.publish(Snapshot({**before.lineups, MODEL: replace(lineup, split=split)}, before.objectives))
    assert outcome(await ask(router, key)) == "miss"
    published.publish(before)
    assert outcome(await ask(router, key)) == "hit"


async def test_a_cached_answer_costs_what_the_settings_say() -> None:
    async with running_router(cached_percent=50) as router:
        price = Price(MODEL, 1_000_000, 1_000_000, 2_000_000)
        await router.parts.tenancy.administer(lambda admin: admin.set_price(SYSTEM, price))
        tenant = await router.new_tenant("acme", CACHES)
        key = await router.new_key(tenant)
        await ask(router, key)
        (made,) = await router.usage(tenant)
        await ask(router, key)
        (both,) = await router.usage(tenant)
        assert made.cost > 0
        assert (both.requests, both.cost) == (2, made.cost + made.cost // 2)


async def test_the_official_client_reads_a_cached_stream(router: RunningRouter) -> None:
    key = await new_key(router)
    client = openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key=key, http_client=httpx.AsyncClient())
    texts = []
    for _ in range(2):
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}], stream=True, extra_headers=ASKED
        )
        texts.append(
            "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
        )
    assert texts[0] == texts[1] != ""
    await client.close()
