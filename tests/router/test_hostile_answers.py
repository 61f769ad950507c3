"""What a model can be made to write, and images of a few bytes, do not hold up the event loop."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import httpx
import pytest

from router.routing.chat_template import ChatTemplate
from router.routing.models import ServedModel
from tests.fakes.pipeline import FakePipeline, words
from tests.router.chat.pictures import data_url, seer
from tests.router.chat.test_image_headers import packed_text, png
from tests.router.running import TEMPLATE, TOKENIZER, RunningRouter, running_router
from tests.router.test_event_loop import CHAT, MOST_S, longest_turn

# Its calls are written as text between tags.
CODER = ChatTemplate(TEMPLATE + "{# <parameter= #}", None, TOKENIZER)
ARGUMENTS = 200


def looped_schema() -> dict[str, Any]:
    """Each argument leads into a schema that leads back into itself, past ten thousand others."""
    loop = {"anyOf": [True] * 10_000 + [{"$ref": "#/$defs/x"}]}
    return {"$defs": {"x": loop}, "properties": {f"a{n}": {"$ref": "#/$defs/x"} for n in range(ARGUMENTS)}}


def call(*arguments: str) -> str:
    return f"<tool_call><function=f>{''.join(arguments)}</function></tool_call>"


ANSWERS = {
    "beginnings of arguments": (call("<parameter=" * 1_000), {}),
    "arguments of a schema that leads into itself": (
        call(*(f"<parameter=a{n}>1</parameter>" for n in range(ARGUMENTS))),
        looped_schema(),
    ),
}


def post(router: RunningRouter, body: dict[str, Any]) -> httpx.Response:
    with httpx.Client(trust_env=False, verify=False, timeout=60) as http:
        return http.post(router.url + CHAT, json=body)


@pytest.mark.parametrize("name", ANSWERS)
async def test_no_answer_with_calls_of_tools_holds_up_the_event_loop(name: str) -> None:
    text, schema = ANSWERS[name]
    pipeline = FakePipeline()
    pipeline.script = lambda call: words(*(text[at : at + 40] for at in range(0, len(text), 40)))
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    body = {"model": "coder", "messages": [{"role": "user", "content": "x"}], "tools": tools}
    async with running_router(others=[ServedModel("coder", pipeline, CODER)]) as router:
        longest_s, answer = await longest_turn(partial(post, router, body))
    assert answer.status_code == 200
    assert longest_s <= MOST_S


async def test_no_image_of_a_few_kilobytes_holds_up_the_event_loop() -> None:
    """Each has texts that unpack to twenty megabytes."""
    image = {"type": "image_url", "image_url": {"url": data_url(png(*[packed_text()] * 20))}}
    body = {"model": "seer", "messages": [{"role": "user", "content": [image] * 8}]}
    assert len(json.dumps(body["messages"])) < 400_000
    async with running_router(others=[seer(max_images=8)]) as router:
        longest_s, answer = await longest_turn(partial(post, router, body))
    assert answer.status_code == 400
    assert longest_s <= MOST_S
