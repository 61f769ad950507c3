"""What somebody sees who opens the router's address: a page in a browser, JSON in a program."""

from __future__ import annotations

import re

from router.docs_page import in_words
from tests.router.running import EMBEDDER, MODEL, RunningRouter, running_router


async def test_a_browser_gets_a_page_with_links_that_loads_nothing(router: RunningRouter) -> None:
    page = await router.http.get("/", headers={"accept": "text/html,*/*"})
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "://" not in page.text
    assert MODEL in page.text
    for path in re.findall(r'href="([^"]+)"', page.text):
        assert (await router.http.get(path)).status_code == 200


async def test_a_program_gets_json(router: RunningRouter) -> None:
    told = (await router.http.get("/")).json()
    assert [model["id"] for model in told["models"]] == [MODEL, "no-template", EMBEDDER]
    assert told["links"]["docs"] == "/docs"
    versions = {"version": told["version"], "api_version": told["api_version"]}
    assert (await router.http.get("/version")).json() == versions


async def test_models_are_not_named_to_those_without_a_key(router: RunningRouter) -> None:
    await router.new_key(await router.new_tenant())
    told = await router.http.get("/")
    page = await router.http.get("/", headers={"accept": "text/html"})
    assert "models" not in told.json()
    assert MODEL not in told.text + page.text


async def test_health_and_ping_tell_whether_requests_would_be_served(router: RunningRouter) -> None:
    for path in ("/health", "/ping"):
        assert (await router.http.get(path)).status_code == 200
    router.permits.drain()
    for path in ("/health", "/ping"):
        assert (await router.http.get(path)).status_code == 503


async def test_a_slash_at_the_end_of_a_path_is_forgiven(router: RunningRouter) -> None:
    assert (await router.http.get("/v1/models/")).json() == (await router.http.get("/v1/models")).json()
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    assert (await router.http.post("/v1/chat/completions/", json=body)).status_code == 200
    form = {"files": {"file": ("a.jsonl", b"{}\n" * 400_000)}, "data": {"purpose": "batch"}}
    assert (await router.http.post("/v1/files/", **form)).status_code == 200  # type: ignore[arg-type]  # a form


async def test_a_key_is_described_only_once_there_are_keys() -> None:
    async with running_router() as router:
        assert "security" not in (await router.http.get("/openapi.json")).text
        await router.new_key(await router.new_tenant())
        document = (await router.http.get("/openapi.json")).json()
        assert document["paths"]["/v1/models"]["get"]["security"] == [{"key": []}, {"x-api-key": []}]
        assert "security" not in document["paths"]["/health"]["get"]


def test_bounds_are_told_with_their_numbers() -> None:
    words = {
        "integer, 1 to 16": {"type": "integer", "minimum": 1, "maximum": 16},
        "number, at least 0": {"type": "number", "minimum": 0},
        "string, at most 1,000 characters": {"type": "string", "maxLength": 1000},
        "list of: integer, at least 0, 1 to 4 entries": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0},
            "minItems": 1,
            "maxItems": 4,
        },
    }
    assert {in_words(field): field for field in words.values()} == words


async def test_the_docs_tell_bounds_and_link_bodies(router: RunningRouter) -> None:
    page = (await router.http.get("/docs")).text
    assert "number, 0 to 2" in page
    assert '<a href="#ChatBody">' in page
    targets = set(re.findall(r'href="#([^"]+)"', page))
    assert targets <= set(re.findall(r'id="([^"]+)"', page))


async def test_a_model_tells_what_it_can_be_asked(router: RunningRouter) -> None:
    listed = {model["id"]: model for model in (await router.http.get("/v1/models")).json()["data"]}
    text, bare, vectors = listed[MODEL], listed["no-template"], listed[EMBEDDER]
    assert text["max_model_len"] == text["context_length"] == 8192
    assert text["capabilities"]["chat"]
    assert text["capabilities"]["tools"]
    assert not text["capabilities"]["embeddings"]
    assert bare["capabilities"]["completions"]
    assert not bare["capabilities"]["chat"]
    assert vectors["capabilities"]["embeddings"]
    assert vectors["capabilities"]["rerank"]
    assert vectors["dimensions"] > 0
    assert (await router.http.get(f"/v1/models/{EMBEDDER}")).json() == vectors
