"""Streams of an answer that is paused: no proxy cuts them, and no client stumbles over what is sent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import anthropic
import ollama
import openai
import pytest

from router.core.generation import Delta
from router.http import sse
from router.request import text
from tests.pace import patience
from tests.router.running import MODEL, RunningRouter, running_router


@pytest.fixture
async def paused(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RunningRouter]:
    monkeypatch.setattr(text, "_KEEP_ALIVE_S", 0.005)
    async with running_router() as router:
        router.pipeline.script = lambda call: [
            Delta("a", 1, 7),
            patience(0.2),
            Delta("b", 1, 7),
            Delta("", finish="end_id"),
        ]
        yield router


async def test_the_clients_of_every_api_read_on_after_a_pause(paused: RunningRouter) -> None:
    async with openai.AsyncOpenAI(base_url=f"{paused.url}/v1", api_key="none") as client:
        chunks = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}], stream=True
        )
        assert "".join([each.choices[0].delta.content or "" async for each in chunks]) == "ab"
    async with anthropic.AsyncAnthropic(base_url=paused.url, api_key="none") as claude:
        asked = claude.messages.stream(
            model=MODEL, max_tokens=9, messages=[{"role": "user", "content": "hi"}]
        )
        async with asked as stream:
            assert await stream.get_final_text() == "ab"
    async with ollama.AsyncClient(host=paused.url) as llama:
        lines = await llama.generate(model=MODEL, prompt="hi", stream=True)
        assert "".join([each.response async for each in lines]) == "ab"


async def test_what_is_sent_in_a_pause_is_each_apis_own(paused: RunningRouter) -> None:
    chat = await paused.chat(stream=True)
    assert sse.COMMENT.decode() in chat.text
    body = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], "stream": True}
    message = await paused.http.post("/v1/messages", json=body)
    assert message.text.count("event: ping\n") > 1
    lines = await paused.http.post("/api/generate", json={"model": MODEL, "prompt": "hi"})
    assert "\n " in lines.text
    assert [json.loads(line)["done"] for line in lines.text.splitlines()] == [False, False, True]
