"""Chat completions that are to be remembered, in the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import sqlalchemy as sql
from sqlalchemy import Connection, RowMapping

from router.content.conversations.conversation_store import PAGE_BYTES, KeptTexts, encode, within
from router.content.lookup import Owner, Page, PageQuery, checked_id, is_there, missing, next_rows
from router.content.storage_quota import ROW_BYTES
from router.store.content_tables import chat_completions
from router.tenants.records import deleted_among

KIND = "Chat completion"
_chats = chat_completions.c
Completion = dict[str, Any]


class MessageQuery(PageQuery, frozen=True):
    order: Literal["asc", "desc"] = "asc"


class ChatQuery(MessageQuery, frozen=True):
    model: str | None = None


class ChatStore(KeptTexts):
    async def save(
        self, owner: Owner, completion: Completion, metadata: dict[str, str], messages: Sequence[Any]
    ) -> None:
        """Where the tenant was deleted meanwhile, it stays gone."""
        texts = {"metadata": encode(metadata), "body": encode(completion), "messages": encode(messages)}
        row = {
            "id": completion["id"],
            "organisation_id": owner.organisation_id,
            "user_id": owner.user_id,
            "created_s": self._clock(),
            "model": completion["model"],
            "size_bytes": sum(len(text.encode()) for text in texts.values()) + ROW_BYTES,
            **texts,
        }

        def act(to: Connection) -> None:
            is_kept = deleted_among(to, {owner.organisation_id}) or is_there(to, chat_completions, row["id"])
            if not is_kept:
                self._quota.take(to, owner.organisation_id, row["size_bytes"])
                to.execute(sql.insert(chat_completions).values(row))

        await self._store.write(act, owner.organisation_id)

    async def find(self, owner: Owner, completion_id: str) -> Completion:
        def act(at: Connection) -> Completion:
            return _shown(_find(at, owner, completion_id))

        return await self._store.read(act, owner.organisation_id)

    async def messages(self, owner: Owner, completion_id: str) -> list[dict[str, Any]]:
        """What it was asked, each message with an id of its own."""

        def act(at: Connection) -> list[dict[str, Any]]:
            asked = msgspec.json.decode(_find(at, owner, completion_id)["messages"])
            return [
                {"id": f"{completion_id}-{index}", "content_parts": None, **_with_parts(message)}
                for index, message in enumerate(asked)
            ]

        return await self._store.read(act, owner.organisation_id)

    async def page(self, owner: Owner, query: ChatQuery, metadata: Mapping[str, str]) -> Page[Completion]:
        """The oldest first; those alone that have all of the metadata. It ends early where they are large."""
        after = None if query.after is None else checked_id(KIND, query.after, "after")

        def act(at: Connection) -> Page[Completion]:
            chosen = sql.select(_chats.id, _chats.size_bytes).where(owner.owns(chat_completions))
            if query.model is not None:
                chosen = chosen.where(_chats.model == query.model)
            # Each pair as it is written: quotes inside of texts are escaped, so it is found nowhere else.
            position = sql.func.strpos if at.dialect.name == "postgresql" else sql.func.instr
            for pair in metadata.items():
                chosen = chosen.where(position(_chats.metadata, encode(dict([pair]))[1:-1]) > 0)
            last = None if after is None else _find(at, owner, after, "after")
            mark = () if last is None else (last["created_s"], last["id"])
            by = (_chats.created_s, _chats.id)
            found = at.execute(next_rows(chosen, by, mark, query.order == "asc", query.limit + 1)).all()
            kept = [row.id for row in within(found[: query.limit], PAGE_BYTES)]
            rows = at.execute(sql.select(chat_completions).where(_chats.id.in_(kept))).mappings()
            shown = {row["id"]: _shown(row) for row in rows}
            return Page([shown[each] for each in kept], len(kept) < len(found))

        return await self._store.read(act, owner.organisation_id)

    async def update(self, owner: Owner, completion_id: str, metadata: dict[str, str]) -> Completion:
        def act(to: Connection) -> Completion:
            row, shown = _find(to, owner, completion_id), encode(metadata)
            more = len(shown.encode()) - len(row["metadata"].encode())
            if more > 0:
                self._quota.take(to, owner.organisation_id, more)
            change = sql.update(chat_completions).where(_is(owner, completion_id))
            to.execute(change.values(metadata=shown, size_bytes=_chats.size_bytes + more))
            return _shown({**row, "metadata": shown})

        return await self._store.write(act, owner.organisation_id)

    async def delete(self, owner: Owner, completion_id: str) -> None:
        def act(to: Connection) -> None:
            if not to.execute(sql.delete(chat_completions).where(_is(owner, completion_id))).rowcount:
                raise missing(KIND, completion_id)

        await self._store.write(act, owner.organisation_id)


def _is(owner: Owner, completion_id: str) -> sql.ColumnElement[bool]:
    return sql.and_(_chats.id == checked_id(KIND, completion_id), owner.owns(chat_completions))


def _find(at: Connection, owner: Owner, completion_id: str, param: str | None = None) -> RowMapping:
    row = at.execute(sql.select(chat_completions).where(_is(owner, completion_id))).mappings().first()
    if row is None:
        raise missing(KIND, completion_id, param)
    return row


def _shown(row: Mapping[Any, Any]) -> Completion:
    """As it was answered, with its metadata as they are now."""
    return {**msgspec.json.decode(row["body"]), "metadata": msgspec.json.decode(row["metadata"])}


def _with_parts(message: dict[str, Any]) -> dict[str, Any]:
    """Where the content came in parts, those of text."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    texts = [{"type": "text", "text": part["text"]} for part in content if part.get("text") is not None]
    return {**message, "content": "\n".join(part["text"] for part in texts), "content_parts": texts}
