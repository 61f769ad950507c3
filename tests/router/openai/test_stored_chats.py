"""Chat completions with `store`, as OpenAI's own client uses them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from router.content.files.model import FileLimits
from tests.fakes.pipeline import words
from tests.router.running import MODEL, QUESTION, RunningRouter, running_router


@pytest.fixture
async def client(router: RunningRouter) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0) as made:
        yield made


async def make(client: openai.AsyncOpenAI, **more: Any) -> Any:
    return await client.chat.completions.create(model=MODEL, messages=QUESTION, store=True, **more)


async def test_a_stored_completion_is_shown_as_it_was_answered_and_can_be_deleted(
    client: openai.AsyncOpenAI,
) -> None:
    made = await make(client, metadata={"topic": "greeting"})
    found = await client.chat.completions.retrieve(made.id)
    assert found.choices == made.choices
    assert found.model_dump()["metadata"] == {"topic": "greeting"}
    messages = [message async for message in client.chat.completions.messages.list(made.id)]
    assert [(message.role, message.content) for message in messages] == [("user", "hi")]
    changed = await client.chat.completions.update(made.id, metadata={"topic": "other"})
    assert changed.model_dump()["metadata"] == {"topic": "other"}
    deleted = await client.chat.completions.delete(made.id)
    assert (deleted.id, deleted.deleted) == (made.id, True)
    for attempt in (
        client.chat.completions.retrieve(made.id),
        client.chat.completions.update(made.id, metadata={}),
        client.chat.completions.messages.list(made.id),
        client.chat.completions.delete(made.id),
    ):
        with pytest.raises(openai.NotFoundError):
            await attempt


async def test_a_streamed_completion_is_stored_before_its_end_is_told(
    router: RunningRouter, client: openai.AsyncOpenAI
) -> None:
    stream = await make(client, stream=True, n=2)
    chunks = [chunk async for chunk in stream]
    found = await client.chat.completions.retrieve(chunks[0].id)
    assert [choice.message.content for choice in found.choices] == ["Hello world", "Hello world"]
    assert found.usage is not None
    assert found.usage.completion_tokens == 4
    (used,) = await router.usage("local")
    assert used.requests == 1


async def test_stored_completions_are_listed_by_model_metadata_and_page(client: openai.AsyncOpenAI) -> None:
    made = [await make(client, metadata={"n": str(number), "say": 'a "quote"'}) for number in range(3)]
    ids = [each.id for each in made]
    everything = [each.id async for each in client.chat.completions.list(limit=2)]
    assert everything == ids
    backwards = await client.chat.completions.list(limit=1, order="desc")
    assert [each.id for each in backwards.data] == [ids[2]]
    after = await client.chat.completions.list(after=ids[1])
    assert [each.id for each in after.data] == [ids[2]]
    chosen = await client.chat.completions.list(metadata={"n": "1", "say": 'a "quote"'})
    assert [each.id for each in chosen.data] == [ids[1]]
    for nothing in ({"N": "1"}, {"n": "11"}, {"say": 'A "quote"'}, {"n": '1","say'}):
        assert (await client.chat.completions.list(metadata=nothing)).data == []
    assert (await client.chat.completions.list(model="other")).data == []


async def test_only_what_is_to_be_stored_is(router: RunningRouter, client: openai.AsyncOpenAI) -> None:
    await router.chat()
    await router.chat(store=False, metadata={"a": "b"})
    assert (await client.chat.completions.list()).data == []
    for fields in ({"metadata": {"a": 1}}, {"metadata": {"x" * 65: "b"}}, {"store": "yes"}):
        assert (await router.chat(**fields)).status_code == 400


async def test_an_answer_that_fails_is_not_stored(router: RunningRouter, client: openai.AsyncOpenAI) -> None:
    router.pipeline.script = lambda call: words("Hel", finish="cancelled")
    with pytest.raises(openai.APIError):
        await make(client)
    assert (await client.chat.completions.list()).data == []


async def test_stored_completions_belong_to_their_user_and_count_in_the_quota() -> None:
    async with running_router(file_limits=FileLimits(max_bytes_per_tenant=1500)) as router:
        tenant = await router.new_tenant()
        own, other = [{"authorization": f"Bearer {await router.new_key(tenant)}"} for _ in range(2)]
        body = {"model": MODEL, "messages": QUESTION, "store": True}
        path = "/v1/chat/completions"
        made = (await router.http.post(path, json=body, headers=own)).json()
        assert (await router.http.get(path, headers=other)).json()["data"] == []
        assert (await router.http.get(f"{path}/{made['id']}", headers=other)).status_code == 404
        statuses = [(await router.http.post(path, json=body, headers=own)).status_code for _ in range(3)]
        assert statuses[-1] == 413
        assert (await router.http.get(f"{path}/{made['id']}", headers=own)).status_code == 200


@pytest.mark.parametrize("query", ["model=a%00b", "metadata[a]=%00", "after=a%00b"])
async def test_a_query_with_a_character_that_no_database_takes_is_refused(
    router: RunningRouter, query: str
) -> None:
    answer = await router.http.get(f"/v1/chat/completions?{query}")
    assert answer.status_code == 400
    assert "NUL" in answer.json()["error"]["message"]
