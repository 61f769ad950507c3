"""Responses in the store, each with its own items and a link to the one before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import sqlalchemy as sql
from sqlalchemy import Connection, RowMapping

from python_backend.wire.errors import ErrorKind, InflightError
from router.content.conversations import conversation_store
from router.content.conversations.conversation_store import (
    MOST_HISTORY_BYTES,
    MOST_HISTORY_ITEMS,
    History,
    KeptTexts,
    encode,
)
from router.content.conversations.items import Item
from router.content.lookup import Owner, checked_id, is_there, missing
from router.content.storage_quota import ROW_BYTES
from router.request.decoding import invalid
from router.store.content_tables import responses
from router.tenants.records import deleted_among

KIND = "Response"
_MOST_LINKS = 1_000
_GOING_ON = ("queued", "in_progress")
_LINK = tuple(column for column in responses.c if column.name != "body")


@dataclass(frozen=True, slots=True)
class EndedResponse:
    """A response that ended well, as it is to be kept. `counted` are old items whose size is new."""

    id: str
    created_s: float
    body: dict[str, Any]
    input: Sequence[Item]
    output: Sequence[Item]
    previous_id: str | None = None
    conversation_id: str | None = None
    counted: Sequence[Item] = field(default=())


class ResponseStore(KeptTexts):
    async def save(
        self, owner: Owner, ended: EndedResponse, keeps_response: bool, is_begun: bool = False
    ) -> None:
        """One transaction: the response, and its items in its conversation where it has one.

        Where the conversation, or the whole tenant, was deleted meanwhile, it stays gone; one that `is_begun`
        and was deleted or cancelled meanwhile, too.
        """
        now_s = self._clock()

        def act(to: Connection) -> None:
            if deleted_among(to, {owner.organisation_id}):
                return
            if not is_begun and is_there(to, responses, ended.id):
                return
            if is_begun and not to.execute(_end(owner, ended.id)).rowcount:
                return
            position = None
            if ended.conversation_id is not None:
                items = [*ended.input, *ended.output]
                position = conversation_store.append(
                    to, owner, ended.conversation_id, items, now_s, self._quota
                )
                conversation_store.keep_counts(to, ended.conversation_id, ended.counted)
            if keeps_response:
                row = _row_of(owner, ended, position)
                self._quota.take(to, owner.organisation_id, row["size_bytes"])
                change = sql.update(responses).where(_is(owner, ended.id)).values(row)
                to.execute(change if is_begun else sql.insert(responses).values(row))

        await self._store.write(act, owner.organisation_id)

    async def begin(self, owner: Owner, begun: EndedResponse, lease_s: float) -> None:
        """One that is being made: it can be read and cancelled, but not be continued yet."""
        row = {**_row_of(owner, begun, None), "lease_s": lease_s}

        def act(to: Connection) -> None:
            if deleted_among(to, {owner.organisation_id}):
                raise missing("Organisation", owner.organisation_id)
            if is_there(to, responses, begun.id):  # its router is gone, and another goes on with it
                going_on = sql.update(responses).where(_is(owner, begun.id), responses.c.lease_s.is_not(None))
                if not to.execute(going_on.values(lease_s=lease_s)).rowcount:
                    raise InflightError(ErrorKind.CONFLICT, "this response has ended already")
                return
            self._quota.take(to, owner.organisation_id, row["size_bytes"])
            to.execute(sql.insert(responses).values(row))

        await self._store.write(act, owner.organisation_id)

    async def renew(self, response_ids: Sequence[str], lease_s: float) -> set[str]:
        """Those that are still to be made."""
        going_on = sql.and_(responses.c.id.in_(response_ids), responses.c.lease_s.is_not(None))

        def act(to: Connection) -> set[str]:
            to.execute(sql.update(responses).where(going_on).values(lease_s=lease_s))
            return set(to.scalars(sql.select(responses.c.id).where(going_on)))

        return await self._store.write(act)

    async def fail(self, owner: Owner, body: dict[str, Any]) -> None:
        """One that was begun has come to nothing."""
        ended = _end(owner, body["id"]).values(body=encode(body))
        await self._store.write(lambda to: to.execute(ended).rowcount, owner.organisation_id)

    async def cancel(self, owner: Owner, response_id: str) -> dict[str, Any]:
        """Whoever makes it is told by its lease. What has ended stays as it is."""

        def act(to: Connection) -> dict[str, Any]:
            body = self._shown(_find(to, owner, response_id))
            if body["status"] in _GOING_ON:
                body["status"] = "cancelled"
                to.execute(_end(owner, response_id).values(body=encode(body)))
            return body

        return await self._store.write(act, owner.organisation_id)

    async def find(self, owner: Owner, response_id: str) -> dict[str, Any]:
        """As it was answered."""

        def act(at: Connection) -> dict[str, Any]:
            return self._shown(_find(at, owner, response_id))

        return await self._store.read(act, owner.organisation_id)

    def _shown(self, row: RowMapping) -> dict[str, Any]:
        body: dict[str, Any] = msgspec.json.decode(row["body"])
        if row["lease_s"] is not None and row["lease_s"] < self._clock():
            error = {
                "code": "server_error",
                "message": "the server that was generating this response is gone",
            }
            body |= {"status": "failed", "error": error}
        return body

    async def input_items(self, owner: Owner, response_id: str) -> list[Item]:
        def act(at: Connection) -> list[Item]:
            return msgspec.json.decode(_find(at, owner, response_id)["input"], type=list[Item])

        return await self._store.read(act, owner.organisation_id)

    async def delete(self, owner: Owner, response_id: str) -> None:
        def act(to: Connection) -> None:
            if not to.execute(sql.delete(responses).where(_is(owner, response_id))).rowcount:
                raise missing(KIND, response_id)

        await self._store.write(act, owner.organisation_id)

    async def history(self, owner: Owner, response_id: str) -> History:
        """What was said up to the end of a response."""
        checked_id("Previous response", response_id, "previous_response_id")
        return await self._store.read(lambda at: _history(at, owner, response_id), owner.organisation_id)


def _history(at: Connection, owner: Owner, response_id: str) -> History:
    rows = at.execute(_chain(owner, response_id)).mappings().all()
    if not rows:
        raise missing("Previous response", response_id, "previous_response_id")
    if rows[0]["lease_s"] is not None:
        raise invalid("previous_response_id: this response is not completed", "previous_response_id")
    items: list[Item] = []
    for row in reversed(rows):
        items += msgspec.json.decode(row["input"], type=list[Item])
        items += msgspec.json.decode(row["output"], type=list[Item])
    conversation_id, position = rows[-1]["conversation_id"], rows[-1]["conversation_position"]
    if rows[-1]["total_bytes"] > MOST_HISTORY_BYTES:
        return History(items, is_whole=False)
    if conversation_id is None or position is None:
        return History(items, is_whole=True)
    before = conversation_store.read_history(at, conversation_id, MOST_HISTORY_ITEMS, position)
    return History([*before.items, *items], before.is_whole)


def _chain(owner: Owner, response_id: str) -> sql.Select[Any]:
    """The response and those before it, newest first; it ends where one was deleted.

    Their bodies, which hold the output once more, are not read.
    """
    start = (
        sql.select(*_LINK, sql.literal(0).label("back"), responses.c.size_bytes.label("total_bytes"))
        .where(responses.c.id == response_id, owner.owns(responses))
        .cte("chain", recursive=True)
    )
    earlier = (
        sql.select(*_LINK, start.c.back + 1, start.c.total_bytes + responses.c.size_bytes)
        .join(start, responses.c.id == start.c.previous_id)
        .where(owner.owns(responses), start.c.back < _MOST_LINKS, start.c.total_bytes <= MOST_HISTORY_BYTES)
    )
    chain = start.union_all(earlier)
    return sql.select(chain).order_by(chain.c.back)


def _is(owner: Owner, response_id: str) -> sql.ColumnElement[bool]:
    return sql.and_(responses.c.id == checked_id(KIND, response_id), owner.owns(responses))


def _end(owner: Owner, response_id: str) -> sql.Update:
    """Changes one row where it is still being made, and none otherwise."""
    change = sql.update(responses).where(_is(owner, response_id), responses.c.lease_s.is_not(None))
    return change.values(lease_s=None)


def _find(at: Connection, owner: Owner, response_id: str) -> RowMapping:
    row = at.execute(sql.select(responses).where(_is(owner, response_id))).mappings().first()
    if row is None:
        raise missing(KIND, response_id)
    return row


def _row_of(owner: Owner, ended: EndedResponse, position: int | None) -> dict[str, Any]:
    texts = {name: encode(getattr(ended, name)) for name in ("body", "input", "output")}
    return {
        "id": ended.id,
        "organisation_id": owner.organisation_id,
        "user_id": owner.user_id,
        "created_s": ended.created_s,
        "previous_id": ended.previous_id,
        "conversation_id": ended.conversation_id,
        "conversation_position": position,
        "size_bytes": sum(len(text.encode()) for text in texts.values()) + ROW_BYTES,
        **texts,
    }
