"""/v1/conversations as OpenAI's own client uses it, and what it has more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from tests.router.running import MODEL, RunningRouter


@pytest.fixture
async def client(router: RunningRouter) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def texts(items: list[Any]) -> list[str]:
    return [item.content[0].text for item in items]


async def test_a_conversation_continues_from_its_items(
    client: openai.AsyncOpenAI, router: RunningRouter
) -> None:
    conversation = await client.conversations.create(
        metadata={"title": "Trees"}, items=[{"role": "developer", "content": "Be brief."}]
    )
    first = await client.responses.create(model=MODEL, input="one", conversation=conversation.id)
    assert first.conversation is not None
    assert first.conversation.id == conversation.id
    stream = await client.responses.create(
        model=MODEL, input="two", conversation={"id": conversation.id}, stream=True, store=False
    )
    assert [event async for event in stream][-1].type == "response.completed"
    await client.responses.create(model=MODEL, input="three", conversation=conversation.id)
    assert router.pipeline.calls[-1].prompt == (
        "<system>Be brief.</system><user>one</user><assistant>Hello world</assistant>"
        "<user>two</user><assistant>Hello world</assistant><user>three</user><assistant>"
    )
    items = [item async for item in client.conversations.items.list(conversation.id, order="asc", limit=3)]
    assert texts(items) == ["Be brief.", "one", "Hello world", "two", "Hello world", "three", "Hello world"]


async def test_a_failed_response_is_not_added_to_its_conversation(
    client: openai.AsyncOpenAI, router: RunningRouter
) -> None:
    conversation = await client.conversations.create()
    with pytest.raises(openai.BadRequestError):
        await client.responses.create(
            model=MODEL, input="hi", conversation=conversation.id, tool_choice="required"
        )
    assert (await client.conversations.items.list(conversation.id)).data == []


async def test_a_conversation_can_be_renamed_and_deleted(client: openai.AsyncOpenAI) -> None:
    made = await client.conversations.create(metadata={"title": "A"})
    changed = await client.conversations.update(made.id, metadata={"title": "B"})
    assert changed.metadata == {"title": "B"}
    assert await client.conversations.retrieve(made.id) == changed
    deleted = await client.conversations.delete(made.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (made.id, True, "conversation.deleted")
    with pytest.raises(openai.NotFoundError, match="Conversation with id"):
        await client.conversations.retrieve(made.id)


async def test_conversation_items_can_be_added_read_and_deleted(client: openai.AsyncOpenAI) -> None:
    made = await client.conversations.create()
    added = await client.conversations.items.create(
        made.id,
        items=[
            {"role": "user", "content": "look"},
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "a tree"},
        ],
    )
    assert [item.type for item in added.data] == ["message", "function_call", "function_call_output"]
    one = await client.conversations.items.retrieve(added.data[1].id or "", conversation_id=made.id)
    assert one == added.data[1]
    left = await client.conversations.items.delete(one.id or "", conversation_id=made.id)
    assert left.id == made.id
    rest = [item.type async for item in client.conversations.items.list(made.id, order="asc")]
    assert rest == ["message", "function_call_output"]


async def test_a_callers_own_conversations_are_listed(
    client: openai.AsyncOpenAI, router: RunningRouter
) -> None:
    made = [(await client.conversations.create(metadata={"title": title})).id for title in "abc"]
    await client.conversations.items.create(made[0], items=[{"role": "user", "content": "again"}])
    page = (await router.http.get("/v1/conversations?limit=2")).json()
    assert [entry["id"] for entry in page["data"]] == [made[0], made[2]]
    assert page["has_more"] is True
    rest = (await router.http.get(f"/v1/conversations?after={page['last_id']}")).json()
    assert [entry["id"] for entry in rest["data"]] == [made[1]]
    for query in ("limit=0", "limit=x", "order=up", "after=conv_x", "after=%00"):
        assert (await router.http.get(f"/v1/conversations?{query}")).status_code in (400, 404)


async def test_a_conversation_is_exported_as_json_and_markdown(
    client: openai.AsyncOpenAI, router: RunningRouter
) -> None:
    made = await client.conversations.create(
        metadata={"title": "Trees\nand more"},
        items=[
            {"role": "user", "content": "look"},
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "```a tree```"},
            {"role": "assistant", "content": "A tree."},
        ],
    )
    exported = (await router.http.get(f"/v1/conversations/{made.id}/export")).json()
    assert exported["object"] == "conversation.export"
    assert [item["type"] for item in exported["items"]] == [
        "message",
        "function_call",
        "function_call_output",
        "message",
    ]
    answer = await router.http.get(f"/v1/conversations/{made.id}/export?format=markdown")
    assert answer.headers["content-type"].startswith("text/markdown")
    assert answer.text == (
        "# Trees and more\n\n## user\n\nlook\n\n## assistant calls look\n\n```\n{}\n```\n\n"
        "## result\n\n````\n```a tree```\n````\n\n## assistant\n\nA tree.\n"
    )


async def test_bad_bodies_are_refused_by_name(router: RunningRouter) -> None:
    made = (await router.http.post("/v1/conversations", json={})).json()["id"]
    many = [{"role": "user", "content": "x"}] * 21
    refused: list[tuple[str, object, str | None]] = [
        ("", {"items": many}, "items"),
        ("", {"name": "x"}, "name"),
        ("", {"metadata": {"a": 1}}, "metadata[...]"),
        (f"/{made}", {}, "metadata"),
        (f"/{made}/items", {"items": [{"role": "user", "content": [{"type": "input_image"}]}]},
         "items[0].content[0]"),
        (f"/{made}/items", [], None),
    ]  # fmt: skip
    for path, body, param in refused:
        answer = await router.http.post(f"/v1/conversations{path}", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_conversation_does_not_exist_for_other_users_and_organisations(router: RunningRouter) -> None:
    """Neither for another user of the organisation, nor for another organisation."""
    tenants = [await router.new_tenant("one"), await router.new_tenant("two")]
    keys = [await router.new_key(tenant) for tenant in (tenants[0], tenants[0], tenants[1])]
    clients = [openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key=key, max_retries=0) for key in keys]
    owner, *others = clients
    conversation = await owner.conversations.create()
    response = await owner.responses.create(model=MODEL, input="mine", conversation=conversation.id)
    for other in others:
        attempts = [
            other.conversations.retrieve(conversation.id),
            other.conversations.delete(conversation.id),
            other.conversations.items.create(conversation.id, items=[{"role": "user", "content": "x"}]),
            other.responses.retrieve(response.id),
            other.responses.create(model=MODEL, input="x", conversation=conversation.id),
            other.responses.create(model=MODEL, input="x", previous_response_id=response.id),
        ]
        for attempt in attempts:
            with pytest.raises(openai.NotFoundError):
                await attempt
    assert texts([item async for item in owner.conversations.items.list(conversation.id)]) == [
        "Hello world",
        "mine",
    ]
    for each in clients:
        await each.close()
