"""A whole router process with TLS, client certificates, rules and a prompt log."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
import trustme

from tests.fakes.triton_server import FakeTriton, story
from tests.pace import patience
from tests.router.http.test_tls import AUTHORITY, OTHER_AUTHORITY, trusting, written
from tests.router.process import started_router
from tests.waiting import soon, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
RULES = '[[rules]]\nname = "magic words"\nterms = ["xyzzy"]\nwhole_words = false\n'


@dataclass
class Guarded:
    http: httpx.AsyncClient
    triton: FakeTriton
    health_url: str
    directory: Path
    log: list[str]

    async def logged(self, count: int) -> list[dict[str, object]]:
        """When there are so many; they are written some time after the answers."""
        await until(lambda: len(self._lines()) >= count)
        return [json.loads(line) for line in self._lines()]

    def _lines(self) -> list[str]:
        paths = self.directory.glob("prompts/local/*.jsonl")
        return [line for path in paths for line in path.read_text().splitlines()]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(
    tmp_path_factory: pytest.TempPathFactory, unused_tcp_port_factory: Callable[[], int]
) -> AsyncIterator[Guarded]:
    tmp_path, health_port = tmp_path_factory.mktemp("guarded"), unused_tcp_port_factory()
    files = written(tmp_path / "tls", AUTHORITY, client=OTHER_AUTHORITY)
    triton = await FakeTriton().start()
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (tmp_path / "rules.toml").write_text(RULES)
    settings = tmp_path / "router.toml"
    settings.write_text(
        f'port = 0\nstop_timeout_s = 1.0\ndata_dir = "{tmp_path}"\n'
        f'triton_servers = [{{ url = "{triton.url}" }}]\n'
        f'tls_cert = "{files.cert}"\ntls_key = "{files.key}"\ntls_client_ca = "{files.client_ca}"\n'
        f'health_port = {health_port}\nsafety_rules = "{tmp_path}/rules.toml"\n'
        f'prompt_log_dir = "{tmp_path}/prompts"\nretention_days = 30\n'
        f'[[models]]\nname = "tiny"\ncheckpoint_dir = "{tmp_path}"\n'
    )
    client = trusting(AUTHORITY, OTHER_AUTHORITY)
    try:
        async with (
            started_router(settings) as started,
            httpx.AsyncClient(
                base_url=f"https://127.0.0.1:{started.port}",
                verify=client,
                trust_env=False,
                timeout=patience(30),
            ) as http,
        ):
            yield Guarded(http, triton, f"http://127.0.0.1:{health_port}", tmp_path, started.log)
            started.process.terminate()
            assert await soon(started.process.wait()) == 0
    finally:
        await triton.stop()


def chat(content: str, **fields: object) -> dict[str, object]:
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], **fields}


async def test_forbidden_text_neither_enters_nor_leaves_and_the_rest_is_logged_redacted(
    guarded: Guarded,
) -> None:
    refused = await guarded.http.post("/v1/chat/completions", json=chat("say XY\u200bZZY"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "content_filter")
    assert "magic words" in refused.json()["error"]["message"]
    assert guarded.triton.requests == []

    guarded.triton.script = lambda request: story("I know ", "x", "yz", "\u200bz", "y!", " And more")
    asked = chat("mail ann@example.org", stream=True)
    async with guarded.http.stream("POST", "/v1/chat/completions", json=asked) as response:
        lines = [line async for line in response.aiter_lines() if line]
    events = [json.loads(line[6:]) for line in lines[:-1]]
    assert lines[-1] == "data: [DONE]"
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == "I know "
    assert events[-1]["choices"][0]["finish_reason"] == "content_filter"

    whole = (await guarded.http.post("/v1/chat/completions", json=chat("hi"))).json()["choices"][0]
    assert (whole["message"]["content"], whole["finish_reason"]) == ("I know ", "content_filter")

    first, second = await guarded.logged(2)
    assert (first["prompts"], first["answers"]) == (["mail [redacted email]"], ["I know "])
    assert second["finish_reason"] == "content_filter"
    assert "ann@example.org" not in "".join(guarded.log)


async def test_log_probabilities_and_token_ids_are_refused_where_text_is_checked(guarded: Guarded) -> None:
    for path, body in (
        ("/v1/chat/completions", chat("hi", logprobs=True)),
        ("/v1/completions", {"model": "tiny", "prompt": [1, 2]}),
    ):
        answer = await guarded.http.post(path, json=body)
        assert answer.status_code == 400
        assert "are checked" in answer.json()["error"]["message"]


async def test_the_health_port_needs_no_certificate_and_serves_nothing_else(guarded: Guarded) -> None:
    async with httpx.AsyncClient(
        base_url=guarded.health_url, trust_env=False, verify=False, timeout=patience(30)
    ) as plain:
        assert (await plain.get("/health/ready")).status_code == 200
        assert (await plain.get("/v1/models")).status_code == 404
        assert (await plain.post("/v1/chat/completions", json=chat("hi"))).status_code == 404
    without = ssl.create_default_context()
    trustme.CA.configure_trust(AUTHORITY, without)
    async with httpx.AsyncClient(
        base_url=guarded.http.base_url, verify=without, trust_env=False, timeout=patience(30)
    ) as stranger:
        with pytest.raises(httpx.TransportError):
            await stranger.get("/health/live")


async def test_an_unreadable_request_is_answered_over_tls(guarded: Guarded) -> None:
    headers = {"content-type": "application/json"}
    answer = await guarded.http.post("/v1/chat/completions", content=b" " * (2 << 20), headers=headers)
    assert answer.status_code == 413
