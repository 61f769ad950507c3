"""Chat completions with `store: true`: kept before their end is told, listed, changed and deleted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec

from python_backend.wire.errors import InflightError
from router.chat.bodies import Metadata
from router.content.conversations.chat_store import ChatQuery, ChatStore, MessageQuery
from router.content.lookup import Owner, page_of
from router.core.actions import Action
from router.openai.dialects import ChatDialect
from router.request.decoding import decode, decode_query
from router.request.errors import respond_encoded, respond_json
from router.request.routes import Route

if TYPE_CHECKING:
    from router.chat.bodies import ChatBody
    from router.content.storage_quota import StorageQuota
    from router.core.messages import Message
    from router.core.record import Record
    from router.http.exchange import Exchange
    from router.openai.dialects import Ended
    from router.openai.held_exchange import HeldExchange
    from router.request.choice import TokenLog

_ONE = "/v1/chat/completions/{completion_id}"
_PAIR = re.compile(r"metadata\[([^\]]{1,64})\]")


class StoredDialect(ChatDialect):
    """Keeps the whole completion too, streamed or not."""

    def __init__(self, request_id: str, model: str, created_s: float, **named: Any) -> None:
        super().__init__(request_id, model, created_s, **named)
        self.completion = b""
        self._told: dict[int, list[str]] = {}  # the text of each choice, where it is streamed

    def text_event(self, index: int, text: str) -> bytes:
        self._told.setdefault(index, []).append(text)
        return super().text_event(index, text)

    def logged_event(self, index: int, text: str, log: TokenLog) -> bytes:
        self._told.setdefault(index, []).append(text)
        return super().logged_event(index, text, log)

    def closing(self, choices: Sequence[Ended]) -> bytes:
        events = super().closing(choices)
        self.token_ids = None  # all of them were told
        self.completion = super().whole(
            choices, ["".join(self._told.get(each.index, ())) for each in choices]
        )
        return events

    def whole(self, choices: Sequence[Ended], texts: Sequence[str]) -> bytes:
        self.completion = super().whole(choices, texts)
        return self.completion


class ChatKeeper:
    """Stores completions before their end is told."""

    def __init__(self, store: ChatStore, quota: StorageQuota) -> None:
        self._store = store
        self._quota = quota

    def check(self, exchange: Exchange, record: Record) -> None:
        """Before anything is done for a completion that there is no room for."""
        self._quota.check(record.tenant, len(exchange.request.body))

    async def keep(
        self,
        exchange: Exchange,
        held: HeldExchange,
        record: Record,
        body: ChatBody,
        dialect: StoredDialect,
    ) -> None:
        """Stores what `held` was told, and then tells its end."""
        completion: dict[str, Any] = msgspec.json.decode(dialect.completion)
        shown = [_shown(message) for message in body.messages]
        try:
            await self._store.save(Owner.of(record.caller), completion, body.metadata or {}, shown)
        except InflightError as error:
            message = f"the chat completion was not stored: {error.message}"
            raise InflightError(error.kind, message) from error
        if held.started:
            exchange.end(held.tail)
        else:
            respond_encoded(exchange, record, dialect.completion)


def _shown(message: Message) -> dict[str, Any]:
    """Without fields that were not given."""
    fields: dict[str, Any] = msgspec.to_builtins(message)
    return {name: value for name, value in fields.items() if value is not None or name == "content"}


class MetadataChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All metadata there is to be."""

    metadata: Metadata | None


_change = msgspec.json.Decoder(MetadataChange)


class StoredChats:
    def __init__(self, store: ChatStore) -> None:
        self._store = store

    async def list(self, exchange: Exchange, record: Record) -> None:
        query = decode_query(exchange.request.query, ChatQuery)
        fields = parse_qsl(exchange.request.query, keep_blank_values=True)
        metadata = {pair[1]: value for name, value in fields if (pair := _PAIR.fullmatch(name))}
        page = await self._store.page(Owner.of(record.caller), query, metadata)
        respond_json(exchange, record, page.rendered(lambda completion: completion))

    async def show(self, exchange: Exchange, record: Record) -> None:
        respond_json(exchange, record, await self._store.find(*_named(record)))

    async def update(self, exchange: Exchange, record: Record) -> None:
        change = decode(_change, exchange.request.body)
        changed = await self._store.update(*_named(record), change.metadata or {})
        respond_json(exchange, record, changed)

    async def delete(self, exchange: Exchange, record: Record) -> None:
        owner, completion_id = _named(record)
        await self._store.delete(owner, completion_id)
        deleted = {"id": completion_id, "object": "chat.completion.deleted", "deleted": True}
        respond_json(exchange, record, deleted)

    async def list_messages(self, exchange: Exchange, record: Record) -> None:
        query = decode_query(exchange.request.query, MessageQuery)
        messages = await self._store.messages(*_named(record))
        page = page_of(messages, query, "Message", lambda message: str(message["id"]))
        respond_json(exchange, record, page.rendered(lambda message: message))


def _named(record: Record) -> tuple[Owner, str]:
    return Owner.of(record.caller), record.values["completion_id"]


def routes(store: ChatStore) -> list[Route]:
    api = StoredChats(store)
    read = partial(Route, action=Action.CONVERSATION_READ)
    write = partial(Route, action=Action.CONVERSATION_WRITE)
    return [
        read("GET", "/v1/chat/completions", api.list, "Stored chat completions, oldest first",
              answer="ChatCompletionList", query=ChatQuery),
        read("GET", _ONE, api.show, "A stored chat completion", answer="ChatCompletion"),
        write("POST", _ONE, api.update, "Change its metadata", MetadataChange, "ChatCompletion"),
        write("DELETE", _ONE, api.delete, "Delete a stored chat completion"),
        read("GET", f"{_ONE}/messages", api.list_messages, "The messages of a stored chat completion",
              answer="MessageList", query=MessageQuery),
    ]  # fmt: skip
