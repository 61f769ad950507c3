"""What the router says of itself, held against what it does."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from router.chat.bodies import ChatBody
from router.openai.chat import NEUTRAL
from router.openai.completions import COMPLETION_NEUTRAL, CompletionBody
from tests.router.running import MODEL, RunningRouter


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        found = {value["$ref"]} if "$ref" in value else set()
        return found.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


async def described(router: RunningRouter) -> Any:
    return (await router.http.get("/openapi.json")).json()


async def test_every_schema_that_is_referenced_is_defined(router: RunningRouter) -> None:
    document = await described(router)
    names = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) <= names


@pytest.mark.parametrize(("body", "neutral"), [(ChatBody, NEUTRAL), (CompletionBody, COMPLETION_NEUTRAL)])
async def test_every_accepted_field_is_described(
    router: RunningRouter, body: type[msgspec.Struct], neutral: dict[str, object]
) -> None:
    schema = (await described(router))["components"]["schemas"][body.__name__]
    assert set(schema["properties"]) == set(body.__struct_fields__)
    for name in neutral:
        assert schema["properties"][name]["description"] == "Not supported yet."


async def test_every_described_path_exists_with_exactly_the_described_methods(
    router: RunningRouter,
) -> None:
    paths = (await described(router))["paths"]
    assert {"/v1/chat/completions", "/v1/models/{id}", "/openapi.json", "/docs"} <= set(paths)
    for path, methods in paths.items():
        wrong = await router.http.request("OPTIONS", re.sub(r"\{\w+\}", MODEL, path))
        assert wrong.status_code == 405, path
        assert {method.strip().lower() for method in wrong.headers["allow"].split(",")} == set(methods)


async def test_the_page_shows_every_endpoint_and_loads_nothing(router: RunningRouter) -> None:
    response = await router.http.get("/docs")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["content-security-policy"].startswith("default-src 'none'")
    assert all(path in response.text for path in (await described(router))["paths"])
    assert "://" not in response.text
    assert "<script" not in response.text
