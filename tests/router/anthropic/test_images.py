"""Images by Anthropic's door."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest

from tests.router.chat.pictures import IMAGE_TOKENS, picture, pipeline_of, seer
from tests.router.running import MODEL, RunningRouter, running_router

RED = picture(colour="red")
IMAGE: Any = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(RED).decode()},
}
QUESTION: Any = {"type": "text", "text": "What is it?"}


@pytest.fixture
async def router() -> AsyncIterator[RunningRouter]:
    async with running_router(others=[seer()]) as running:
        yield running


@pytest.fixture
async def client(router: RunningRouter) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=router.url, api_key="none", max_retries=0) as made:
        yield made


def said(*content: Any) -> list[Any]:
    return [{"role": "user", "content": list(content)}]


async def test_a_message_shows_an_image_where_it_stands(
    client: anthropic.AsyncAnthropic, router: RunningRouter
) -> None:
    messages = [*said(QUESTION, IMAGE), {"role": "user", "content": "Well?"}]
    await client.messages.create(model="seer", max_tokens=5, messages=messages)
    (call,) = pipeline_of(router).calls
    assert call.prompt == "<user>What is it?<image>Well?</user><assistant>"
    assert [image.data for image in call.images or ()] == [RED]


async def test_an_uploaded_file_is_shown_by_its_id(
    client: anthropic.AsyncAnthropic, router: RunningRouter
) -> None:
    made = await router.http.post("/v1/files", data={"purpose": "vision"}, files={"file": ("red.png", RED)})
    image = {"type": "image", "source": {"type": "file", "file_id": made.json()["id"]}}
    await client.messages.create(model="seer", max_tokens=5, messages=said(image, QUESTION))
    assert [each.data for each in pipeline_of(router).calls[0].images or ()] == [RED]


@pytest.mark.parametrize(
    ("model", "image", "named"),
    [
        (MODEL, IMAGE, f"image 1: the model '{MODEL}' reads text, not images"),
        ("seer", {"type": "image", "source": {"type": "url", "url": "https://a.org/x.png"}}, "not fetched"),
        ("seer", {"type": "image", "source": {"type": "base64", "data": "!"}}, "the data is not base64"),
    ],
)
async def test_what_cannot_be_shown_is_refused_in_anthropics_shape(
    client: anthropic.AsyncAnthropic, router: RunningRouter, model: str, image: Any, named: str
) -> None:
    with pytest.raises(anthropic.BadRequestError, match=named):
        await client.messages.create(model=model, max_tokens=5, messages=said(image, QUESTION))
    assert pipeline_of(router).calls == router.pipeline.calls == []


async def test_counted_tokens_have_the_most_that_an_image_can_be(client: anthropic.AsyncAnthropic) -> None:
    alone = await client.messages.count_tokens(model="seer", messages=said(QUESTION))
    beside = await client.messages.count_tokens(model="seer", messages=said(IMAGE, QUESTION))
    assert IMAGE_TOKENS <= beside.input_tokens - alone.input_tokens < IMAGE_TOKENS + 10
