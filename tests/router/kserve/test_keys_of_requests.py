"""Requests by Triton's protocol over HTTP with an Idempotency-Key: done and billed once."""

from __future__ import annotations

import httpx
import pytest

from router.http import sse
from tests.pace import patience
from tests.router.kserve.running import RunningKserve
from tests.router.running import MODEL

BODY = {"text_input": "hi", "max_tokens": 9}


@pytest.mark.parametrize("path", ["generate", "generate_stream"])
async def test_the_same_key_has_the_same_answer_and_triton_is_asked_once(
    kserve: RunningKserve, path: str
) -> None:
    url = f"http://{kserve.http_url}/v2/models/{MODEL}/{path}"
    body = {**BODY, "stream": path == "generate_stream"}
    async with httpx.AsyncClient(
        trust_env=False, headers={"idempotency-key": path}, timeout=patience(30)
    ) as http:
        first, again = await http.post(url, json=body), await http.post(url, json=body)
        other = await http.post(url, json={**body, "text_input": "something else"})
        if path == "generate_stream":
            resumed = await http.post(url, json=body, headers={"last-event-id": "1"})
            assert resumed.content == b"".join(sse.split(first.content)[1:])
    assert (first.status_code, again.status_code, other.status_code) == (200, 200, 409)
    assert again.content == first.content
    assert again.headers["idempotent-replayed"] == "true"
    assert len(kserve.triton.requests) == 1
    assert sum(used.requests for used in await kserve.router.usage("local")) == 1
