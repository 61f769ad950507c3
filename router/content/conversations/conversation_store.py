"""Conversations in the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import sqlalchemy as sql
from sqlalchemy import Connection, RowMapping

from router.content.conversations.items import Item, new_id
from router.content.lookup import Owner, Page, PageQuery, checked_id, missing, next_rows
from router.store.content_tables import conversation_items, conversations
from router.store.database import StoreAccess
from router.tenants.records import deleted_among

KIND = "Conversation"
# Of the past, no more than this is looked at when a window is cut: no model reads more.
MOST_HISTORY_ITEMS = 2_000
_items = conversation_items.c


@dataclass(frozen=True, slots=True)
class Conversation:
    id: str
    created_s: float
    updated_s: float
    metadata: dict[str, str]

    def rendered(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "conversation",
            "created_at": int(self.created_s),
            "updated_at": int(self.updated_s),
            "metadata": self.metadata,
        }


class ConversationStore:
    """Each method is one transaction; ids of others are not found."""

    def __init__(self, store: StoreAccess, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    async def create(self, owner: Owner, metadata: dict[str, str], items: Sequence[Item]) -> Conversation:
        now_s = self._clock()
        made = Conversation(new_id("conv"), now_s, now_s, metadata)
        row = {
            "id": made.id,
            "organisation_id": owner.organisation_id,
            "user_id": owner.user_id,
            "created_s": now_s,
            "updated_s": now_s,
            "metadata": encode(metadata),
        }

        def act(to: Connection) -> None:
            if deleted_among(to, {owner.organisation_id}):
                raise missing("Organisation", owner.organisation_id)
            to.execute(sql.insert(conversations).values(row))
            append(to, owner, made.id, items, now_s)

        await self._store.write(act)
        return made

    async def find(self, owner: Owner, conversation_id: str) -> Conversation:
        return await self._store.read(lambda at: _find(at, owner, conversation_id))

    async def page(self, owner: Owner, query: PageQuery) -> Page[Conversation]:
        """The last used first, or last with `asc`."""
        after = None if query.after is None else checked_id(KIND, query.after, "after")

        def act(at: Connection) -> list[Conversation]:
            chosen = sql.select(conversations).where(owner.owns(conversations))
            last = None if after is None else _find(at, owner, after)
            mark = () if last is None else (last.updated_s, last.id)
            by = (conversations.c.updated_s, conversations.c.id)
            rows = at.execute(next_rows(chosen, by, mark, query.order == "asc", query.limit + 1))
            return [_conversation(row) for row in rows.mappings()]

        return Page.of(await self._store.read(act), query.limit)

    async def update(self, owner: Owner, conversation_id: str, metadata: dict[str, str]) -> Conversation:
        now_s = self._clock()

        def act(to: Connection) -> Conversation:
            change = sql.update(conversations).where(_is(owner, conversation_id))
            to.execute(change.values(metadata=encode(metadata), updated_s=now_s))
            return _find(to, owner, conversation_id)

        return await self._store.write(act)

    async def delete(self, owner: Owner, conversation_id: str) -> None:
        def act(to: Connection) -> None:
            if not to.execute(sql.delete(conversations).where(_is(owner, conversation_id))).rowcount:
                raise missing(KIND, conversation_id)

        await self._store.write(act)

    # Items

    async def add(self, owner: Owner, conversation_id: str, items: Sequence[Item]) -> None:
        now_s = self._clock()

        def act(to: Connection) -> None:
            if append(to, owner, conversation_id, items, now_s) is None:
                raise missing(KIND, conversation_id)

        await self._store.write(act)

    async def items(self, owner: Owner, conversation_id: str, query: PageQuery) -> Page[Item]:
        after = None if query.after is None else checked_id("Item", query.after, "after")

        def act(at: Connection) -> list[Item]:
            _find(at, owner, conversation_id)
            chosen = sql.select(conversation_items).where(_items.conversation_id == conversation_id)
            mark = () if after is None else (_find_item(at, conversation_id, after)["position"],)
            ordered = next_rows(chosen, (_items.position,), mark, query.order == "asc", query.limit + 1)
            return [item_of(row) for row in at.execute(ordered).mappings()]

        return Page.of(await self._store.read(act), query.limit)

    async def item(self, owner: Owner, conversation_id: str, item_id: str) -> Item:
        def act(at: Connection) -> Item:
            _find(at, owner, conversation_id)
            return item_of(_find_item(at, conversation_id, item_id))

        return await self._store.read(act)

    async def delete_item(self, owner: Owner, conversation_id: str, item_id: str) -> Conversation:
        def act(to: Connection) -> Conversation:
            conversation = _find(to, owner, conversation_id)
            _find_item(to, conversation_id, item_id)
            to.execute(sql.delete(conversation_items).where(_items.id == item_id))
            return conversation

        return await self._store.write(act)

    async def history(
        self, owner: Owner, conversation_id: str, most: int | None = MOST_HISTORY_ITEMS
    ) -> list[Item]:
        """Oldest first: the newest of its items, and every system message."""
        checked_id(KIND, conversation_id, "conversation")

        def act(at: Connection) -> list[Item]:
            _find(at, owner, conversation_id)
            return read_history(at, conversation_id, most)

        return await self._store.read(act)


def read_history(
    at: Connection, conversation_id: str, most: int | None, before: int | None = None
) -> list[Item]:
    """`before` is a position: only what is older is read. Nothing where there is no such conversation."""
    chosen = sql.select(conversation_items).where(_items.conversation_id == conversation_id)
    if before is not None:
        chosen = chosen.where(_items.position < before)
    newest = at.execute(chosen.order_by(_items.position.desc()).limit(most)).mappings().all()
    older: Sequence[RowMapping] = ()
    if most is not None and len(newest) == most:
        rest = chosen.where(_items.pinned, _items.position < newest[-1]["position"])
        older = at.execute(rest.order_by(_items.position)).mappings().all()
    return [item_of(row) for row in [*older, *reversed(newest)]]


def append(
    to: Connection, owner: Owner, conversation_id: str, items: Sequence[Item], now_s: float
) -> int | None:
    """The position of the first; None where there is no such conversation (any more)."""
    # The update holds the row to the end of the transaction: two answers at once come one after the other.
    touched = sql.update(conversations).where(_is(owner, conversation_id)).values(updated_s=now_s)
    if not to.execute(touched).rowcount:
        return None
    last = sql.select(sql.func.max(_items.position)).where(_items.conversation_id == conversation_id)
    first = int(to.scalar(last) or 0) + 1
    if items:
        rows = [_row_of(item, conversation_id, first + index) for index, item in enumerate(items)]
        to.execute(sql.insert(conversation_items), rows)
    return first


def keep_counts(to: Connection, conversation_id: str, items: Sequence[Item]) -> None:
    """Sizes that were counted just now, so that they need not be again."""
    for item in items:
        change = sql.update(conversation_items).where(
            _items.id == item.id, _items.conversation_id == conversation_id
        )
        to.execute(change.values(tokens=item.tokens, counted_by=item.counted_by))


def _is(owner: Owner, conversation_id: str) -> sql.ColumnElement[bool]:
    return sql.and_(conversations.c.id == checked_id(KIND, conversation_id), owner.owns(conversations))


def _find(at: Connection, owner: Owner, conversation_id: str) -> Conversation:
    row = at.execute(sql.select(conversations).where(_is(owner, conversation_id))).mappings().first()
    if row is None:
        raise missing(KIND, conversation_id)
    return _conversation(row)


def _find_item(at: Connection, conversation_id: str, item_id: str) -> RowMapping:
    chosen = sql.select(conversation_items).where(
        _items.id == checked_id("Item", item_id), _items.conversation_id == conversation_id
    )
    row = at.execute(chosen).mappings().first()
    if row is None:
        raise missing("Item", item_id)
    return row


def _conversation(row: RowMapping) -> Conversation:
    metadata = msgspec.json.decode(row["metadata"], type=dict[str, str])
    return Conversation(row["id"], row["created_s"], row["updated_s"], metadata)


def item_of(row: RowMapping) -> Item:
    item = msgspec.json.decode(row["item"], type=Item)
    return msgspec.structs.replace(item, tokens=row["tokens"], counted_by=row["counted_by"])


def _row_of(item: Item, conversation_id: str, position: int) -> dict[str, Any]:
    return {
        "id": item.id,
        "conversation_id": conversation_id,
        "position": position,
        "pinned": item.role == "system",
        "item": encode(msgspec.structs.replace(item, tokens=None, counted_by="")),
        "tokens": item.tokens,
        "counted_by": item.counted_by,
    }


def encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()
