"""Conversations and responses in a store of each kind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import sqlalchemy as sql

from python_backend.wire.errors import ErrorKind, InflightError
from router.content.conversations import conversation_store, response_store
from router.content.conversations.chat_store import ChatQuery, ChatStore
from router.content.conversations.conversation_store import ConversationStore
from router.content.conversations.items import Item, message_item, text_part
from router.content.conversations.response_store import EndedResponse, ResponseStore
from router.content.lookup import Owner, PageQuery
from router.content.storage_quota import StorageQuota, stored_bytes
from router.store import content_tables
from router.store.database import Store, StoreAccess
from router.tenants.administration import Administration
from router.tenants.rbac import SYSTEM
from tests.router.tenants.values import PEPPER

ANN = Owner("org-1", "user-ann")
OTHERS = [Owner("org-2", "user-bob"), Owner("org-1", "user-eve")]


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        self.now_s += 1
        return self.now_s


@pytest.fixture
async def access(store: Store) -> AsyncIterator[StoreAccess]:
    opened = StoreAccess(store)
    yield opened
    opened.close()


@pytest.fixture
def conversations(access: StoreAccess) -> ConversationStore:
    return ConversationStore(access, StorageQuota(1 << 30), Clock())


@pytest.fixture
def responses(access: StoreAccess) -> ResponseStore:
    return ResponseStore(access, StorageQuota(1 << 30), Clock())


def said(text: str, role: str = "user") -> Item:
    return message_item(role, [text_part(role, text)], text)


def ended(name: str, previous: str | None = None, conversation: str | None = None) -> EndedResponse:
    asked, answered = said(f"q-{name}"), said(f"a-{name}", "assistant")
    body = {"id": f"resp_{name}", "object": "response"}
    return EndedResponse(f"resp_{name}", 1.0, body, [asked], [answered], previous, conversation)


def texts(items: list[Item]) -> list[str]:
    return [item.text for item in items]


async def refused(awaited: object) -> InflightError:
    with pytest.raises(InflightError) as caught:
        await awaited  # type: ignore[misc]  # each is a coroutine
    return caught.value


async def test_a_conversation_keeps_its_items(conversations: ConversationStore) -> None:
    made = await conversations.create(ANN, {"title": "trees"}, [said("be brief", "system")])
    await conversations.add(ANN, made.id, [said("one\0two"), said("three", "assistant")])
    assert texts((await conversations.history(ANN, made.id)).items) == ["be brief", "one\0two", "three"]
    found = await conversations.find(ANN, made.id)
    assert found.metadata == {"title": "trees"}
    assert found.updated_s > found.created_s


async def test_other_owners_find_no_conversation_or_response(
    conversations: ConversationStore, responses: ResponseStore
) -> None:
    made = await conversations.create(ANN, {}, [said("mine")])
    item = (await conversations.history(ANN, made.id)).items[0]
    await responses.save(ANN, ended("1"), True)
    for other in OTHERS:
        attempts = [
            conversations.find(other, made.id),
            conversations.update(other, made.id, {}),
            conversations.delete(other, made.id),
            conversations.add(other, made.id, [said("yours")]),
            conversations.items(other, made.id, PageQuery()),
            conversations.item(other, made.id, item.id),
            conversations.delete_item(other, made.id, item.id),
            conversations.history(other, made.id),
            conversations.page(other, PageQuery(after=made.id)),
            responses.find(other, "resp_1"),
            responses.input_items(other, "resp_1"),
            responses.delete(other, "resp_1"),
            responses.history(other, "resp_1"),
        ]
        for attempt in attempts:
            assert (await refused(attempt)).kind is ErrorKind.NOT_FOUND
        assert (await conversations.page(other, PageQuery())).entries == []
        # What is no conversation of theirs takes nothing in.
        await responses.save(other, ended(f"by_{other.user_id[5:]}", None, made.id), True)
    assert texts((await conversations.history(ANN, made.id)).items) == ["mine"]


async def test_pages_of_conversations_go_from_the_last_used_to_the_first(
    conversations: ConversationStore,
) -> None:
    made = [await conversations.create(ANN, {"title": str(number)}, []) for number in range(5)]
    await conversations.add(ANN, made[0].id, [said("used again")])
    first = await conversations.page(ANN, PageQuery(limit=2))
    assert [entry.metadata["title"] for entry in first.entries] == ["0", "4"]
    assert first.has_more
    rest = await conversations.page(ANN, PageQuery(limit=3, after=first.entries[-1].id))
    assert [entry.metadata["title"] for entry in rest.entries] == ["3", "2", "1"]
    assert not rest.has_more
    oldest = await conversations.page(ANN, PageQuery(limit=1, order="asc"))
    assert oldest.entries[0].metadata["title"] == "1"


async def test_pages_of_items_go_either_way(conversations: ConversationStore) -> None:
    made = await conversations.create(ANN, {}, [said(str(number)) for number in range(5)])
    newest = await conversations.items(ANN, made.id, PageQuery(limit=2))
    assert texts(list(newest.entries)) == ["4", "3"]
    older = await conversations.items(ANN, made.id, PageQuery(limit=9, after=newest.entries[-1].id))
    assert texts(list(older.entries)) == ["2", "1", "0"]
    oldest = await conversations.items(ANN, made.id, PageQuery(limit=2, order="asc"))
    assert texts(list(oldest.entries)) == ["0", "1"]
    assert oldest.has_more


async def test_an_item_can_be_deleted(conversations: ConversationStore) -> None:
    made = await conversations.create(ANN, {}, [said("a"), said("b")])
    [first, _] = (await conversations.history(ANN, made.id)).items
    assert (await conversations.item(ANN, made.id, first.id)).text == "a"
    await conversations.delete_item(ANN, made.id, first.id)
    assert (await refused(conversations.item(ANN, made.id, first.id))).kind is ErrorKind.NOT_FOUND
    await conversations.add(ANN, made.id, [said("c")])
    assert texts((await conversations.history(ANN, made.id)).items) == ["b", "c"]


async def test_history_of_a_long_conversation_is_its_newest_items_and_the_system_messages(
    conversations: ConversationStore,
) -> None:
    made = await conversations.create(ANN, {}, [said("rules", "system"), *map(said, "abcdef")])
    assert texts((await conversations.history(ANN, made.id, most=2)).items) == ["rules", "e", "f"]


async def test_concurrent_answers_are_appended_one_after_the_other(
    conversations: ConversationStore, responses: ResponseStore
) -> None:
    made = await conversations.create(ANN, {}, [])
    names = [str(number) for number in range(12)]
    await asyncio.gather(*(responses.save(ANN, ended(name, None, made.id), True) for name in names))
    said_there = texts((await conversations.history(ANN, made.id)).items)
    assert sorted(said_there) == sorted([f"{kind}-{name}" for name in names for kind in "qa"])
    pairs = list(zip(said_there[::2], said_there[1::2], strict=True))
    assert all(asked[2:] == answered[2:] for asked, answered in pairs)


async def test_a_response_leads_to_its_previous_responses(responses: ResponseStore) -> None:
    await responses.save(ANN, ended("1"), True)
    await responses.save(ANN, ended("2", "resp_1"), True)
    await responses.save(ANN, ended("3", "resp_2"), True)
    assert texts((await responses.history(ANN, "resp_3")).items) == ["q-1", "a-1", "q-2", "a-2", "q-3", "a-3"]
    assert await responses.find(ANN, "resp_2") == {"id": "resp_2", "object": "response"}
    assert texts(await responses.input_items(ANN, "resp_2")) == ["q-2"]
    await responses.delete(ANN, "resp_2")
    assert texts((await responses.history(ANN, "resp_3")).items) == ["q-3", "a-3"]
    assert (await refused(responses.delete(ANN, "resp_2"))).kind is ErrorKind.NOT_FOUND


async def test_a_response_in_a_conversation_leads_to_the_items_before_it(
    conversations: ConversationStore, responses: ResponseStore
) -> None:
    made = await conversations.create(ANN, {}, [said("hello")])
    await responses.save(ANN, ended("1", None, made.id), True)
    await responses.save(ANN, ended("2", None, made.id), True)
    assert texts((await responses.history(ANN, "resp_1")).items) == ["hello", "q-1", "a-1"]
    await conversations.delete(ANN, made.id)
    assert texts((await responses.history(ANN, "resp_2")).items) == ["q-2", "a-2"]


async def test_a_response_that_is_not_stored_is_kept_in_its_conversation_alone(
    conversations: ConversationStore, responses: ResponseStore
) -> None:
    made = await conversations.create(ANN, {}, [])
    await responses.save(ANN, ended("1", None, made.id), keeps_response=False)
    assert texts((await conversations.history(ANN, made.id)).items) == ["q-1", "a-1"]
    assert (await refused(responses.find(ANN, "resp_1"))).kind is ErrorKind.NOT_FOUND


async def test_a_conversation_deleted_meanwhile_stays_deleted(
    conversations: ConversationStore, responses: ResponseStore
) -> None:
    made = await conversations.create(ANN, {}, [])
    await conversations.delete(ANN, made.id)
    await responses.save(ANN, ended("1", None, made.id), True)
    assert (await refused(conversations.find(ANN, made.id))).kind is ErrorKind.NOT_FOUND
    assert texts((await responses.history(ANN, "resp_1")).items) == ["q-1", "a-1"]


async def test_answers_that_end_while_a_conversation_is_deleted_leave_nothing_behind(
    conversations: ConversationStore, responses: ResponseStore, store: Store
) -> None:
    made = await conversations.create(ANN, {}, [])
    saving = [responses.save(ANN, ended(str(number), None, made.id), True) for number in range(8)]
    await asyncio.gather(*saving[:4], conversations.delete(ANN, made.id), *saving[4:])
    with store.read() as connection:
        assert connection.execute(sql.select(content_tables.conversation_items)).all() == []
        assert len(connection.execute(sql.select(content_tables.responses)).all()) == 8


async def test_a_tenants_conversations_are_exported_and_deleted(
    conversations: ConversationStore, responses: ResponseStore, store: Store
) -> None:
    for owner in (ANN, *OTHERS):
        made = await conversations.create(owner, {"title": owner.user_id}, [said("first")])
        await responses.save(owner, ended(owner.user_id[5:], None, made.id), True)
    with store.read() as connection:
        exported = content_tables.export_conversations(connection, "org-1")
    assert {each["metadata"]["title"] for each in exported["conversations"]} == {"user-ann", "user-eve"}
    assert exported["conversations"][0]["items"][0]["text"] == "first"
    assert {each["body"]["id"] for each in exported["responses"]} == {"resp_ann", "resp_eve"}
    with store.begin() as connection:
        content_tables.delete_conversations(connection, "org-1")
    with store.read() as connection:
        assert content_tables.export_conversations(connection, "org-1") == {
            "responses": [],
            "chat_completions": [],
            "conversations": [],
        }
        assert len(content_tables.export_conversations(connection, "org-2")["conversations"]) == 1


async def test_an_answer_that_ends_after_its_tenant_was_deleted_is_not_kept(
    store: Store, conversations: ConversationStore, responses: ResponseStore
) -> None:
    administration = Administration(store, PEPPER)
    owner = Owner(administration.create_organisation(SYSTEM, "acme").id, "user-ann")
    administration.delete_organisation(SYSTEM, owner.organisation_id)
    await responses.save(owner, ended("1"), keeps_response=True)
    with pytest.raises(InflightError, match="not found"):
        await conversations.create(owner, {}, [])
    with store.read() as connection:
        assert content_tables.export_conversations(connection, owner.organisation_id) == {
            "responses": [],
            "chat_completions": [],
            "conversations": [],
        }


async def test_of_a_past_of_many_bytes_the_newest_are_read_and_the_system_messages(
    conversations: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation_store, "MOST_HISTORY_BYTES", 15_000)
    made = await conversations.create(ANN, {}, [said("rules", "system")])
    await conversations.add(ANN, made.id, [said(f"{number} {'x' * 3_000}") for number in range(8)])
    history = await conversations.history(ANN, made.id)
    assert [text.split()[0] for text in texts(history.items)] == ["rules", "6", "7"]
    assert not history.is_whole
    await conversations.add(ANN, made.id, [said("x" * 15_000, "system"), *(said("y" * 9_000) for _ in "ab")])
    error = await refused(conversations.history(ANN, made.id))
    assert "the system messages have more than 15000 bytes" in error.message


async def test_of_earlier_responses_no_more_bytes_are_read_than_of_conversations(
    responses: ResponseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_store, "MOST_HISTORY_BYTES", 2_000)
    for number in range(9):
        await responses.save(ANN, ended(str(number), f"resp_{number - 1}" if number else None), True)
    history = await responses.history(ANN, "resp_8")
    assert not history.is_whole
    assert 0 < len(history.items) < 18
    assert texts(history.items)[-2:] == ["q-8", "a-8"]


async def test_a_page_of_large_items_ends_early_and_says_that_there_is_more(
    conversations: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation_store, "PAGE_BYTES", 15_000)
    made = await conversations.create(ANN, {}, [said(str(number) + "x" * 3_000) for number in range(8)])
    page = await conversations.items(ANN, made.id, PageQuery(limit=5))
    assert [text[0] for text in texts(list(page.entries))] == ["7", "6"]
    assert page.has_more
    pages = [items async for items in conversations.all_items(ANN, made.id)]
    assert [text[0] for items in pages for text in texts(items)] == list("01234567")
    assert len(pages) == 4


async def test_sizes_follow_what_is_stored_and_deleted(
    access: StoreAccess, conversations: ConversationStore, responses: ResponseStore
) -> None:
    async def held() -> int:
        return await access.read(lambda at: stored_bytes(at, ANN.organisation_id))

    made = await conversations.create(ANN, {"title": "trees"}, [said("x" * 1_000), said("y" * 10)])
    whole = await held()
    assert whole > 2_000  # a text is kept as it is shown and as it is read
    await conversations.update(ANN, made.id, {"title": "t" * 500})
    await conversations.update(ANN, made.id, {"title": "trees"})
    assert await held() == whole
    first = (await conversations.history(ANN, made.id)).items[0]
    await conversations.delete_item(ANN, made.id, first.id)
    assert await held() < whole - 2_000
    await responses.save(ANN, ended("1"), True)
    await responses.delete(ANN, "resp_1")
    await conversations.delete(ANN, made.id)
    assert await held() == 0


def being_made(name: str) -> EndedResponse:
    body = {"id": f"resp_{name}", "object": "response", "status": "queued", "background": True}
    return EndedResponse(f"resp_{name}", 1.0, body, [said(f"q-{name}")], ())


async def test_a_response_that_is_being_made_is_kept_until_its_end(responses: ResponseStore) -> None:
    await responses.begin(ANN, being_made("a"), lease_s=9e9)
    assert (await responses.find(ANN, "resp_a"))["status"] == "queued"
    assert (await refused(responses.history(ANN, "resp_a"))).kind is ErrorKind.INVALID_REQUEST
    assert await responses.renew(["resp_a", "resp_b"], 9e9) == {"resp_a"}
    await responses.save(ANN, ended("a"), keeps_response=True, is_begun=True)
    assert texts((await responses.history(ANN, "resp_a")).items) == ["q-a", "a-a"]
    assert await responses.renew(["resp_a"], 9e9) == set()


async def test_a_response_whose_router_died_has_failed(responses: ResponseStore) -> None:
    await responses.begin(ANN, being_made("a"), lease_s=0.0)
    found = await responses.find(ANN, "resp_a")
    assert (found["status"], found["error"]["code"]) == ("failed", "server_error")
    assert (await responses.cancel(ANN, "resp_a"))["status"] == "failed"


async def test_a_response_that_was_cancelled_or_deleted_elsewhere_stays_so(
    responses: ResponseStore,
) -> None:
    for name in ("a", "b"):
        await responses.begin(ANN, being_made(name), lease_s=9e9)
    assert (await responses.cancel(ANN, "resp_a"))["status"] == "cancelled"
    await responses.delete(ANN, "resp_b")
    assert await responses.renew(["resp_a", "resp_b"], 9e9) == set()
    for name in ("a", "b"):
        await responses.save(ANN, ended(name), keeps_response=True, is_begun=True)
        await responses.fail(ANN, {"id": f"resp_{name}", "status": "failed"})
    assert (await responses.find(ANN, "resp_a"))["status"] == "cancelled"
    assert (await refused(responses.find(ANN, "resp_b"))).kind is ErrorKind.NOT_FOUND
    assert (await refused(responses.cancel(OTHERS[1], "resp_a"))).kind is ErrorKind.NOT_FOUND


async def test_chat_completions_are_found_by_their_metadata(access: StoreAccess) -> None:
    chats = ChatStore(access, StorageQuota(1 << 30), Clock())
    for number in range(3):
        metadata = {"n": str(number), "größe": 'a"b%_'}
        await chats.save(ANN, {"id": f"chatcmpl-{number}", "model": "tiny"}, metadata, [])
    found = await chats.page(ANN, ChatQuery(), {"n": "1", "größe": 'a"b%_'})
    assert [each["id"] for each in found.entries] == ["chatcmpl-1"]
    newest = await chats.page(ANN, ChatQuery(order="desc", limit=2, model="tiny"), {})
    assert ([each["id"] for each in newest.entries], newest.has_more) == (["chatcmpl-2", "chatcmpl-1"], True)
    assert not (await chats.page(ANN, ChatQuery(), {"N": "1"})).entries
    assert not (await chats.page(OTHERS[0], ChatQuery(), {})).entries
    await chats.update(ANN, "chatcmpl-1", {"n": "x" * 500})
    assert (await chats.find(ANN, "chatcmpl-1"))["metadata"] == {"n": "x" * 500}
