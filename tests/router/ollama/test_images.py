"""Images by Ollama's door."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.router.chat.pictures import picture, pipeline_of, seer
from tests.router.running import RunningRouter, running_router

RED = picture(colour="red")
FILES = [base64.b64encode(RED).decode()]
PLACE = "<user><image>What is it?</user><assistant>"


@pytest.fixture
async def router() -> AsyncIterator[RunningRouter]:
    async with running_router(others=[seer()]) as running:
        yield running


@pytest.mark.parametrize(
    ("what", "fields"),
    [
        ("chat", {"messages": [{"role": "user", "content": "What is it?", "images": FILES}]}),
        ("generate", {"prompt": "What is it?", "images": FILES}),
    ],
)
async def test_files_in_base64_are_shown_before_what_is_said(
    router: RunningRouter, what: str, fields: dict[str, Any]
) -> None:
    answer = await router.http.post(f"/api/{what}", json={"model": "seer", "stream": False, **fields})
    assert answer.status_code == 200
    (call,) = pipeline_of(router).calls
    assert (call.prompt, [image.data for image in call.images or ()]) == (PLACE, [RED])


async def test_a_model_that_sees_says_so(router: RunningRouter) -> None:
    shown = (await router.http.post("/api/show", json={"model": "seer"})).json()
    assert "vision" in shown["capabilities"]
