"""/v1/conversations: what was said, kept under a name, listed, changed, exported and deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from python_backend.wire.errors import InflightError
from router.chat.bodies import Metadata
from router.content.conversations.conversation_store import Conversation, ConversationStore
from router.content.conversations.items import GivenItem, Item, read_items
from router.content.documents.documents import Documents
from router.content.lookup import Owner, Page, PageQuery
from router.content.storage_quota import StorageQuota
from router.core.actions import Action
from router.core.fair_pool import unless_left
from router.core.record import Record
from router.http.exchange import Exchange
from router.request.aside import LARGE_BYTES, Aside
from router.request.decoding import decode, decode_query, decode_small
from router.request.errors import respond_json
from router.request.routes import Route
from router.store.database import StoreAccess

MOST_ITEMS_AT_ONCE = 20
Body = TypeVar("Body")
_PATH = "/v1/conversations"
_Items = Annotated[list[GivenItem], Meta(max_length=MOST_ITEMS_AT_ONCE)]


class ConversationBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    metadata: Metadata | None = None
    items: _Items | None = None


class ConversationChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All metadata there is to be; its `title` is the conversation's name."""

    metadata: Metadata | None


class NewItems(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    items: _Items
    include: list[str] | None = None


class ExportQuery(msgspec.Struct, frozen=True):
    format: Literal["json", "markdown"] = "json"


_body = msgspec.json.Decoder(ConversationBody)
_change = msgspec.json.Decoder(ConversationChange)
_items = msgspec.json.Decoder(NewItems)


class Conversations:
    def __init__(self, store: ConversationStore, documents: Documents, aside: Aside) -> None:
        self._store = store
        self._documents = documents
        self._aside = aside

    async def create(self, exchange: Exchange, record: Record) -> None:
        body = await self._decoded(_body, exchange.request.body or b"{}", record)
        reading = read_items(body.items or [], "items", record.caller, self._documents)
        items = await unless_left(reading, exchange.on_disconnect)
        made = await self._store.create(Owner.of(record.caller), body.metadata or {}, items)
        respond_json(exchange, record, made.rendered())

    async def list(self, exchange: Exchange, record: Record) -> None:
        query = decode_query(exchange.request.query, PageQuery)
        page = await self._store.page(Owner.of(record.caller), query)
        respond_json(exchange, record, page.rendered(lambda conversation: conversation.rendered()))

    async def show(self, exchange: Exchange, record: Record) -> None:
        found = await self._store.find(*_named(record))
        respond_json(exchange, record, found.rendered())

    async def update(self, exchange: Exchange, record: Record) -> None:
        change = decode_small(_change, exchange.request.body)
        changed = await self._store.update(*_named(record), change.metadata or {})
        respond_json(exchange, record, changed.rendered())

    async def delete(self, exchange: Exchange, record: Record) -> None:
        owner, conversation_id = _named(record)
        await self._store.delete(owner, conversation_id)
        value = {"id": conversation_id, "object": "conversation.deleted", "deleted": True}
        respond_json(exchange, record, value)

    async def export(self, exchange: Exchange, record: Record) -> None:
        """All of it, as JSON or for people; in pieces, as it may be more than fits in memory."""
        query = decode_query(exchange.request.query, ExportQuery)
        owner, conversation_id = _named(record)
        conversation = await self._store.find(owner, conversation_id)
        is_json = query.format == "json"
        headers = [("x-request-id", record.request_id), *_export_headers(conversation_id, is_json)]
        exchange.start(200, headers)
        write = _json_pieces if is_json else _markdown_pieces
        try:
            async for piece in write(conversation, self._store.all_items(owner, conversation_id)):
                if exchange.gone:
                    return
                await exchange.send(piece)
        except InflightError:
            exchange.cut()
            return
        exchange.end()

    # Items

    async def add_items(self, exchange: Exchange, record: Record) -> None:
        body = await self._decoded(_items, exchange.request.body, record)
        reading = read_items(body.items, "items", record.caller, self._documents)
        items = await unless_left(reading, exchange.on_disconnect)
        await self._store.add(*_named(record), items)
        respond_json(exchange, record, Page(items).rendered(lambda item: item.shown))

    async def _decoded(self, decoder: msgspec.json.Decoder[Body], raw: bytes, record: Record) -> Body:
        if len(raw) > LARGE_BYTES:
            return await self._aside.run(record.tenant, decode, decoder, raw)
        return decode(decoder, raw)

    async def list_items(self, exchange: Exchange, record: Record) -> None:
        query = decode_query(exchange.request.query, PageQuery)
        page = await self._store.items(*_named(record), query)
        respond_json(exchange, record, page.rendered(lambda item: item.shown))

    async def show_item(self, exchange: Exchange, record: Record) -> None:
        item = await self._store.item(*_named(record), record.values["item_id"])
        respond_json(exchange, record, item.shown)

    async def delete_item(self, exchange: Exchange, record: Record) -> None:
        left = await self._store.delete_item(*_named(record), record.values["item_id"])
        respond_json(exchange, record, left.rendered())


def _named(record: Record) -> tuple[Owner, str]:
    return Owner.of(record.caller), record.values["conversation_id"]


def _export_headers(conversation_id: str, is_json: bool) -> list[tuple[str, str]]:
    if is_json:
        return [("content-type", "application/json")]
    name = f'attachment; filename="{conversation_id}.md"'
    return [("content-type", "text/markdown; charset=utf-8"), ("content-disposition", name)]


async def _json_pieces(conversation: Conversation, pages: AsyncIterator[list[Item]]) -> AsyncIterator[bytes]:
    head = msgspec.json.encode({**conversation.rendered(), "object": "conversation.export"})
    yield head.removesuffix(b"}") + b',"items":['
    separator = b""
    async for items in pages:
        if items:
            yield separator + b",".join(msgspec.json.encode(item.shown) for item in items)
            separator = b","
    yield b"]}"


async def _markdown_pieces(
    conversation: Conversation, pages: AsyncIterator[list[Item]]
) -> AsyncIterator[bytes]:
    title = " ".join(conversation.metadata.get("title", conversation.id).split())
    yield f"# {title}".encode()
    async for items in pages:
        yield "".join(f"\n\n{_section(item)}" for item in items).encode()
    yield b"\n"


def _section(item: Item) -> str:
    if item.makes is not None:
        return f"## assistant calls {item.shown['name']}\n\n{_fenced(item.called_with)}"
    if item.is_thought:
        return f"## assistant thinks\n\n{item.text}"
    if item.answers is not None:
        return f"## result\n\n{_fenced(item.text)}"
    return f"## {item.shown['role']}\n\n{item.text}"


def _fenced(text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"


def routes(store: StoreAccess, documents: Documents, quota: StorageQuota, aside: Aside) -> list[Route]:
    api = Conversations(ConversationStore(store, quota), documents, aside)
    one = f"{_PATH}/{{conversation_id}}"
    item = f"{one}/items/{{item_id}}"
    read = partial(Route, action=Action.CONVERSATION_READ)
    write = partial(Route, action=Action.CONVERSATION_WRITE)
    return [
        write("POST", _PATH, api.create, "Create a conversation", ConversationBody, "Conversation"),
        read("GET", _PATH, api.list, "Your own conversations, last used first",
             answer="ConversationList", query=PageQuery),
        read("GET", one, api.show, "One conversation", answer="Conversation"),
        write("POST", one, api.update, "Change its metadata; title is the name", ConversationChange,
              "Conversation"),
        write("DELETE", one, api.delete, "Delete a conversation and its items"),
        read("GET", f"{one}/export", api.export, "Export a conversation, as JSON or with format=markdown",
             answer="object or text/markdown", query=ExportQuery),
        read("GET", f"{one}/items", api.list_items, "The items of a conversation, newest first",
              answer="ItemList", query=PageQuery),
        write("POST", f"{one}/items", api.add_items, "Add items to a conversation", NewItems, "ItemList"),
        read("GET", item, api.show_item, "One item", answer="Item"),
        write("DELETE", item, api.delete_item, "Delete one item", answer="Conversation"),
    ]  # fmt: skip
