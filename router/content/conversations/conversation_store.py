"""Conversations in the store."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sql
from sqlalchemy import Connection, RowMapping

from python_backend.wire.errors import ErrorKind, InflightError
from router.content.conversations.items import Item, new_id
from router.content.lookup import Owner, Page, PageQuery, checked_id, missing, next_rows
from router.content.storage_quota import ROW_BYTES, StorageQuota
from router.store.content_tables import conversation_items, conversations
from router.store.database import StoreAccess
from router.tenants.records import deleted_among

KIND = "Conversation"
# Of the past, no more than this is looked at when a window is cut: no model reads more.
MOST_HISTORY_ITEMS = 2_000
MOST_HISTORY_BYTES = 8 << 20
# A page ends before it has more than this, if it has anything.
PAGE_BYTES = 4 << 20
_MOST_A_PAGE = 100
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


class History(NamedTuple):
    """What was said before, the oldest first; where it is not whole, there was more than is read."""

    items: list[Item]
    is_whole: bool


class KeptTexts:
    """Each method is one transaction; ids of others are not found."""

    def __init__(
        self, store: StoreAccess, quota: StorageQuota, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._quota = quota
        self._clock = clock


class ConversationStore(KeptTexts):
    async def create(self, owner: Owner, metadata: dict[str, str], items: Sequence[Item]) -> Conversation:
        now_s = self._clock()
        made = Conversation(new_id("conv"), now_s, now_s, metadata)
        shown = encode(metadata)
        row = {
            "id": made.id,
            "organisation_id": owner.organisation_id,
            "user_id": owner.user_id,
            "created_s": now_s,
            "updated_s": now_s,
            "metadata": shown,
            "size_bytes": _size(shown),
        }

        def act(to: Connection) -> None:
            if deleted_among(to, {owner.organisation_id}):
                raise missing("Organisation", owner.organisation_id)
            self._quota.take(to, owner.organisation_id, _size(shown))
            to.execute(sql.insert(conversations).values(row))
            append(to, owner, made.id, items, now_s, self._quota)

        await self._store.write(act, owner.organisation_id)
        return made

    async def find(self, owner: Owner, conversation_id: str) -> Conversation:
        return await self._store.read(lambda at: _find(at, owner, conversation_id), owner.organisation_id)

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

        return Page.of(await self._store.read(act, owner.organisation_id), query.limit)

    async def update(self, owner: Owner, conversation_id: str, metadata: dict[str, str]) -> Conversation:
        now_s = self._clock()

        def act(to: Connection) -> Conversation:
            shown = encode(metadata)
            more = _size(shown) - _size(encode(_find(to, owner, conversation_id).metadata))
            if more > 0:
                self._quota.take(to, owner.organisation_id, more)
            size_bytes = conversations.c.size_bytes + more
            change = sql.update(conversations).where(_is(owner, conversation_id))
            to.execute(change.values(metadata=shown, updated_s=now_s, size_bytes=size_bytes))
            return _find(to, owner, conversation_id)

        return await self._store.write(act, owner.organisation_id)

    async def delete(self, owner: Owner, conversation_id: str) -> None:
        def act(to: Connection) -> None:
            if not to.execute(sql.delete(conversations).where(_is(owner, conversation_id))).rowcount:
                raise missing(KIND, conversation_id)

        await self._store.write(act, owner.organisation_id)

    # Items

    async def add(self, owner: Owner, conversation_id: str, items: Sequence[Item]) -> None:
        now_s = self._clock()

        def act(to: Connection) -> None:
            if append(to, owner, conversation_id, items, now_s, self._quota) is None:
                raise missing(KIND, conversation_id)

        await self._store.write(act, owner.organisation_id)

    async def items(self, owner: Owner, conversation_id: str, query: PageQuery) -> Page[Item]:
        after = None if query.after is None else checked_id("Item", query.after, "after")

        def act(at: Connection) -> Page[Item]:
            _find(at, owner, conversation_id)
            mark = () if after is None else (_find_item(at, conversation_id, after)["position"],)
            sizes = sql.select(_items.position, _items.size_bytes)
            chosen = sizes.where(_items.conversation_id == conversation_id)
            is_ascending = query.order == "asc"
            ordered = next_rows(chosen, (_items.position,), mark, is_ascending, query.limit + 1)
            found = at.execute(ordered).all()
            kept = within(found[: query.limit], PAGE_BYTES)
            items = _between(at, conversation_id, kept)
            return Page(items if is_ascending else items[::-1], len(kept) < len(found))

        return await self._store.read(act, owner.organisation_id)

    async def item(self, owner: Owner, conversation_id: str, item_id: str) -> Item:
        def act(at: Connection) -> Item:
            _find(at, owner, conversation_id)
            return item_of(_find_item(at, conversation_id, item_id))

        return await self._store.read(act, owner.organisation_id)

    async def delete_item(self, owner: Owner, conversation_id: str, item_id: str) -> Conversation:
        def act(to: Connection) -> Conversation:
            conversation = _find(to, owner, conversation_id)
            size_bytes = conversations.c.size_bytes - _find_item(to, conversation_id, item_id)["size_bytes"]
            to.execute(sql.delete(conversation_items).where(_items.id == item_id))
            smaller = sql.update(conversations).where(conversations.c.id == conversation_id)
            to.execute(smaller.values(size_bytes=size_bytes))
            return conversation

        return await self._store.write(act, owner.organisation_id)

    async def history(self, owner: Owner, conversation_id: str, most: int = MOST_HISTORY_ITEMS) -> History:
        """The newest of its items, and every system message."""
        checked_id(KIND, conversation_id, "conversation")

        def act(at: Connection) -> History:
            _find(at, owner, conversation_id)
            return read_history(at, conversation_id, most)

        return await self._store.read(act, owner.organisation_id)

    async def all_items(self, owner: Owner, conversation_id: str) -> AsyncIterator[list[Item]]:
        """Oldest first, some at a time."""
        query = PageQuery(limit=_MOST_A_PAGE, order="asc")
        while True:
            page = await self.items(owner, conversation_id, query)
            yield list(page.entries)
            if not page.has_more:
                return
            query = msgspec.structs.replace(query, after=page.entries[-1].id)


def read_history(at: Connection, conversation_id: str, most: int, before: int | None = None) -> History:
    """`before` is a position: only what is older is read. Nothing where there is no such conversation."""
    chosen = sql.select(_items.position, _items.size_bytes).where(_items.conversation_id == conversation_id)
    if before is not None:
        chosen = chosen.where(_items.position < before)
    newest = at.execute(chosen.order_by(_items.position.desc()).limit(most + 1)).all()
    kept = within(newest[:most], MOST_HISTORY_BYTES)
    items = _between(at, conversation_id, kept)
    if len(kept) == len(newest):
        return History(items, is_whole=True)
    older = chosen.where(_items.pinned, _items.position < newest[len(kept)].position + 1)
    pinned = at.execute(older.order_by(_items.position)).all()
    if sum(row.size_bytes for row in pinned) > MOST_HISTORY_BYTES:
        message = f"the system messages have more than {MOST_HISTORY_BYTES} bytes, the limit"
        raise InflightError(ErrorKind.CONTEXT_LENGTH_EXCEEDED, message, "conversation")
    return History([*_between(at, conversation_id, pinned, pinned_only=True), *items], is_whole=False)


def within(sizes: Sequence[Any], most_bytes: int) -> Sequence[Any]:
    """The first of them, as many as fit, but one at least."""
    total = 0
    for count, row in enumerate(sizes):
        total += row.size_bytes
        if total > most_bytes and count:
            return sizes[:count]
    return sizes


def _between(
    at: Connection, conversation_id: str, sizes: Sequence[Any], pinned_only: bool = False
) -> list[Item]:
    """From the first to the last of them, oldest first."""
    if not sizes:
        return []
    ends = sorted((sizes[0].position, sizes[-1].position))
    chosen = sql.select(conversation_items).where(
        _items.conversation_id == conversation_id, _items.position.between(*ends)
    )
    if pinned_only:
        chosen = chosen.where(_items.pinned)
    return [item_of(row) for row in at.execute(chosen.order_by(_items.position)).mappings()]


def append(
    to: Connection,
    owner: Owner,
    conversation_id: str,
    items: Sequence[Item],
    now_s: float,
    quota: StorageQuota,
) -> int | None:
    """The position of the first; None where there is no such conversation (any more)."""
    texts = [encode(msgspec.structs.replace(item, tokens=None, counted_by="")) for item in items]
    more = sum(map(_size, texts))
    # The update holds the row to the end of the transaction: two answers at once come one after the other.
    touched = sql.update(conversations).where(_is(owner, conversation_id))
    size_bytes = conversations.c.size_bytes + more
    if not to.execute(touched.values(updated_s=now_s, size_bytes=size_bytes)).rowcount:
        return None
    if more:
        quota.take(to, owner.organisation_id, more)
    last = sql.select(sql.func.max(_items.position)).where(_items.conversation_id == conversation_id)
    first = int(to.scalar(last) or 0) + 1
    if items:
        both = enumerate(zip(items, texts, strict=True), first)
        rows = [_row_of(item, text, conversation_id, position) for position, (item, text) in both]
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


def _row_of(item: Item, text: str, conversation_id: str, position: int) -> dict[str, Any]:
    return {
        "id": item.id,
        "conversation_id": conversation_id,
        "position": position,
        "pinned": item.role == "system",
        "item": text,
        "size_bytes": _size(text),
        "tokens": item.tokens,
        "counted_by": item.counted_by,
    }


def _size(text: str) -> int:
    return len(text.encode()) + ROW_BYTES


def encode(value: Any) -> str:
    return _encoded(value).decode()


def _encoded(value: Any) -> bytes:
    """An item holds what was said up to three times: each is written by itself, and others run in between."""
    if isinstance(value, list):
        return b"[%b]" % b",".join(map(_encoded, value))
    if isinstance(value, Item):
        said = {name: getattr(value, name) for name in ("text", "parts")}
        apart = {name: msgspec.Raw(msgspec.json.encode(each)) for name, each in said.items() if each}
        value = msgspec.structs.replace(value, **apart)
    return msgspec.json.encode(value)
