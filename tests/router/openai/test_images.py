"""Images by OpenAI's doors: what reaches the model, what is kept, what is counted, what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from router.core.generation import GenerationCall
from tests.router.chat.pictures import IMAGE_TOKENS, data_url, picture, pipeline_of, seer
from tests.router.running import MODEL, RunningRouter, running_router

RED, BLUE = picture(colour="red"), picture(colour="blue")
PLACE = "<user><image>What is it?</user><assistant>"


@pytest.fixture
async def router() -> AsyncIterator[RunningRouter]:
    async with running_router(others=[seer()]) as running:
        yield running


@pytest.fixture
async def client(router: RunningRouter) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def asked(router: RunningRouter) -> list[GenerationCall]:
    return pipeline_of(router).calls


def shown(*images: dict[str, Any], text: str = "What is it?") -> list[Any]:
    parts = [{"type": "image_url", "image_url": image} for image in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


async def upload(client: openai.AsyncOpenAI, data: bytes) -> str:
    made = await client.files.create(file=("red.png", data), purpose="vision")
    return str(made.id)


async def test_a_chat_shows_images_of_data_urls_and_of_uploaded_files(
    client: openai.AsyncOpenAI, router: RunningRouter
) -> None:
    file_id = await upload(client, RED)
    messages = shown({"url": data_url(BLUE), "detail": "low"}, {"file_id": file_id})
    answer = await client.chat.completions.create(model="seer", messages=messages)
    assert answer.choices[0].message.content == "Hello world"
    (call,) = asked(router)
    assert [image.data for image in call.images or ()] == [BLUE, RED]
    assert call.prompt == "<user><image><image>What is it?</user><assistant>"
    assert call.image_tokens == 2 * IMAGE_TOKENS


async def test_each_of_several_answers_is_shown_the_image(
    client: openai.AsyncOpenAI, router: RunningRouter
) -> None:
    await client.chat.completions.create(model="seer", messages=shown({"url": data_url(RED)}), n=2)
    assert [len(call.images or ()) for call in asked(router)] == [1, 1]


@pytest.mark.parametrize(
    ("model", "url", "said"),
    [
        (MODEL, data_url(RED), f"image 1: the model '{MODEL}' reads text, not images"),
        ("seer", "https://example.org/a.png", "images are not fetched from other hosts"),
        ("seer", data_url(b"no image"), "image 1: is not a readable image"),
    ],
)
async def test_a_chat_is_refused_in_openais_shape(
    client: openai.AsyncOpenAI, router: RunningRouter, model: str, url: str, said: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=said) as caught:
        await client.chat.completions.create(model=model, messages=shown({"url": url}))
    assert caught.value.param == "messages"
    assert asked(router) == router.pipeline.calls == []


async def test_more_images_than_the_model_takes_are_refused(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="3 images: the model 'seer' takes at most 2"):
        await client.chat.completions.create(model="seer", messages=shown(*[{"url": data_url(RED)}] * 3))


async def test_the_list_of_models_says_which_see(client: openai.AsyncOpenAI) -> None:
    sees = {model.id: model.model_dump()["capabilities"]["vision"] async for model in client.models.list()}
    assert sees["seer"] is True
    assert sees[MODEL] is False


async def test_a_response_shows_images_again_to_the_turns_behind_it(
    client: openai.AsyncOpenAI, router: RunningRouter
) -> None:
    content: list[Any] = [
        {"type": "input_image", "image_url": data_url(RED), "detail": "auto"},
        {"type": "input_text", "text": "What is it?"},
    ]
    first = await client.responses.create(model="seer", input=[{"role": "user", "content": content}])
    await client.responses.create(model="seer", input="And now?", previous_response_id=first.id)
    calls = asked(router)
    assert calls[0].prompt == PLACE
    assert [[image.data for image in call.images or ()] for call in calls] == [[RED], [RED]]
    items = await client.responses.input_items.list(first.id)
    (item,) = [each.model_dump() async for each in items]
    assert item["content"][0]["type"] == "input_image"
    assert "base64" not in str(item)


async def test_a_response_shows_an_uploaded_file_and_counts_the_most_it_can_be(
    client: openai.AsyncOpenAI, router: RunningRouter
) -> None:
    image: dict[str, Any] = {"type": "input_image", "file_id": await upload(client, RED), "detail": "auto"}
    given: list[Any] = [{"role": "user", "content": [image]}]
    await client.responses.create(model="seer", input=given)
    assert [each.data for each in asked(router)[0].images or ()] == [RED]


async def test_a_response_of_a_model_that_reads_text_is_refused(
    client: openai.AsyncOpenAI, router: RunningRouter
) -> None:
    image: dict[str, Any] = {"type": "input_image", "image_url": data_url(RED), "detail": "auto"}
    with pytest.raises(openai.BadRequestError, match="reads text, not images") as caught:
        await client.responses.create(model=MODEL, input=[{"role": "user", "content": [image]}])
    assert caught.value.param == "input"
    assert router.pipeline.calls == []


async def test_tokens_of_images_are_not_told_before_the_model_has_read_them(router: RunningRouter) -> None:
    body = {"model": "seer", "messages": shown({"url": data_url(RED)})}
    answer = await router.http.post("/tokenize", json=body)
    assert answer.status_code == 400
    assert "tokens of images" in answer.json()["error"]["message"]
