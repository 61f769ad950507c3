"""A file named by its id in a request: its content is for keys that may read files, at every door."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from router.core.tenant import Caller, Scope
from router.http.inner_exchange import InnerExchange
from tests.router.chat.pictures import picture, seer
from tests.router.running import EMBEDDER, MODEL, RunningRouter, running_router


@pytest.fixture
async def router() -> AsyncIterator[RunningRouter]:
    async with running_router(others=[seer()]) as running:
        yield running


def chat(model: str, part: dict[str, Any]) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": [part]}]}


def response(model: str, part: dict[str, Any]) -> dict[str, Any]:
    return {"model": model, "input": [{"type": "message", "role": "user", "content": [part]}]}


def message(file_id: str) -> dict[str, Any]:
    image = {"type": "image", "source": {"type": "file", "file_id": file_id}}
    return {"max_tokens": 5, **chat("seer", image)}


def bodies(text: str, image: str) -> list[tuple[str, dict[str, Any]]]:
    """Every way to name an uploaded file in a request."""
    item = {"type": "message", "role": "user", "content": [{"type": "input_file", "file_id": text}]}
    return [
        ("/v1/chat/completions", chat(MODEL, {"type": "file", "file": {"file_id": text}})),
        ("/v1/chat/completions", chat("seer", {"type": "image_url", "image_url": {"file_id": image}})),
        ("/v1/responses", response(MODEL, {"type": "input_file", "file_id": text})),
        ("/v1/responses", response("seer", {"type": "input_image", "file_id": image})),
        ("/v1/conversations", {"items": [item]}),
        ("/v1/messages", message(image)),
    ]


async def upload(router: RunningRouter, key: str, name: str, data: bytes) -> str:
    form: Any = {"files": {"file": (name, data)}, "data": {"purpose": "user_data"}}
    made = await router.http.post("/v1/files", headers={"authorization": f"Bearer {key}"}, **form)
    assert made.status_code == 200, made.text
    file_id: str = made.json()["id"]
    return file_id


async def test_no_door_reads_a_file_for_a_key_that_may_not_read_files(router: RunningRouter) -> None:
    tenant = await router.new_tenant()
    reads = await router.new_key(tenant, frozenset({Scope.INFERENCE, Scope.FILES}))
    asks = await router.new_key(tenant, frozenset({Scope.INFERENCE}))
    files = (
        await upload(router, reads, "a.txt", b"the secret"),
        await upload(router, reads, "b.png", picture()),
    )
    for named in (files, ("file-unknown", "file-unknown")):
        for path, body in bodies(*named):
            headers = {"authorization": f"Bearer {asks}"}
            refused = await router.http.post(path, json=body, headers=headers)
            assert refused.status_code == 403, (path, refused.text)
            assert "lacks the scope files" in refused.text
    assert router.pipeline.calls == []
    for path, body in bodies(*files):
        read = await router.http.post(path, json=body, headers={"authorization": f"Bearer {reads}"})
        assert read.status_code == 200, (path, read.text)


async def test_what_is_asked_in_a_keys_name_from_inside_needs_that_keys_scopes(router: RunningRouter) -> None:
    """As each line of a batch is."""
    tenant = await router.new_tenant()
    key = await router.new_key(tenant, frozenset({Scope.INFERENCE}))
    caller = router.parts.tenancy.keyring.verify(key, 0.0)
    assert isinstance(caller, Caller)
    part = {"type": "file", "file": {"file_id": "file-unknown"}}
    lines = {"/v1/chat/completions": chat(MODEL, part), "/v1/embeddings": {"model": EMBEDDER, "input": "hi"}}
    for path, body in lines.items():
        exchange = InnerExchange(path, msgspec.json.encode(body))
        await router.app(exchange, caller)
        assert exchange.status == 403, path
    exchange = InnerExchange("/v1/completions", msgspec.json.encode({"model": MODEL, "prompt": "hi"}))
    await router.app(exchange, caller)
    assert exchange.status == 200
