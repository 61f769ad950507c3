"""What the router says of itself, held against what it does."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from router.api.bodies import NEUTRAL, ChatBody, CompletionBody
from router.api.description import ENDPOINTS, openapi
from tests.router.running import MODEL, RunningRouter


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        found = {value["$ref"]} if "$ref" in value else set()
        return found.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


def test_every_schema_that_is_named_is_there() -> None:
    described = openapi()
    names = {f"#/components/schemas/{name}" for name in described["components"]["schemas"]}
    assert references(described) <= names


@pytest.mark.parametrize("body", [ChatBody, CompletionBody])
def test_every_field_that_is_taken_is_described(body: type[msgspec.Struct]) -> None:
    schema = openapi()["components"]["schemas"][body.__name__]
    assert set(schema["properties"]) == set(body.__struct_fields__)
    for name in NEUTRAL.keys() & set(body.__struct_fields__):
        assert schema["properties"][name]["description"] == "Not honoured yet."


async def test_every_path_that_is_described_is_there_and_no_other(router: RunningRouter) -> None:
    response = await router.http.get("/openapi.json")
    assert response.json() == openapi()
    for endpoint in ENDPOINTS:
        path = endpoint.path.replace("{id}", MODEL)
        other = "post" if endpoint.method == "get" else "get"
        wrong = await router.http.request(other, path)
        assert wrong.status_code == 405, path
        if endpoint.method == "get":
            assert (await router.http.get(path)).status_code == 200, path


async def test_the_page_shows_every_endpoint_and_loads_nothing(router: RunningRouter) -> None:
    response = await router.http.get("/docs")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["content-security-policy"].startswith("default-src 'none'")
    assert all(endpoint.path in response.text for endpoint in ENDPOINTS)
    assert "://" not in response.text
    assert "<script" not in response.text
