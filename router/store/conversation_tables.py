"""The tables of responses and conversations; all of a tenant's, to take away or to delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import sqlalchemy as sql
from sqlalchemy import BigInteger, Boolean, Column, Double, Integer, String, Table, Text

from router.store.schema import METADATA

if TYPE_CHECKING:
    from sqlalchemy import Connection, RowMapping

# `input` and `output` are the items as they are kept, `body` is the response as it was answered. A response
# in a conversation has its items there too, `conversation_position` is that of the first of them.
responses = Table(
    "responses",
    METADATA,
    Column("id", String, primary_key=True),
    Column("organisation_id", String, nullable=False),
    Column("user_id", String, nullable=False),
    Column("created_s", Double, nullable=False),
    Column("previous_id", String),
    Column("conversation_id", String),
    Column("conversation_position", BigInteger),
    Column("body", Text, nullable=False),
    Column("input", Text, nullable=False),
    Column("output", Text, nullable=False),
    sql.Index("responses_by_age", "organisation_id", "created_s"),
)
conversations = Table(
    "conversations",
    METADATA,
    Column("id", String, primary_key=True),
    Column("organisation_id", String, nullable=False),
    Column("user_id", String, nullable=False),
    Column("created_s", Double, nullable=False),
    Column("updated_s", Double, nullable=False),
    Column("metadata", Text, nullable=False),
    sql.Index("conversations_by_use", "organisation_id", "user_id", "updated_s"),
)
# `pinned` are the system messages, which are read however old they are. The database deletes items with their
# conversation, also those that an answer adds at the same moment.
conversation_items = Table(
    "conversation_items",
    METADATA,
    Column("id", String, primary_key=True),
    Column("conversation_id", String, sql.ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("pinned", Boolean, nullable=False),
    Column("item", Text, nullable=False),
    Column("tokens", Integer),
    Column("counted_by", String, nullable=False),
    sql.UniqueConstraint("conversation_id", "position"),
)


def export(connection: Connection, organisation_id: str) -> dict[str, Any]:
    """Plain values, ready to be written as JSON."""
    kept = sql.select(responses).where(responses.c.organisation_id == organisation_id)
    ours = sql.select(conversations).where(conversations.c.organisation_id == organisation_id)
    items = (
        sql.select(conversation_items)
        .join(conversations, conversations.c.id == conversation_items.c.conversation_id)
        .where(conversations.c.organisation_id == organisation_id)
        .order_by(conversation_items.c.conversation_id, conversation_items.c.position)
    )
    of: dict[str, list[Any]] = {}
    for row in connection.execute(items).mappings():
        of.setdefault(row["conversation_id"], []).append(_decoded(row, "item")["item"])
    return {
        "responses": [
            _decoded(row, "body", "input", "output") for row in connection.execute(kept).mappings()
        ],
        "conversations": [
            {**_decoded(row, "metadata"), "items": of.get(row["id"], [])}
            for row in connection.execute(ours).mappings()
        ],
    }


def delete(connection: Connection, organisation_id: str) -> None:
    """All of a tenant's; items go with their conversations."""
    for table in (responses, conversations):
        connection.execute(sql.delete(table).where(table.c.organisation_id == organisation_id))


def _decoded(row: RowMapping, *names: str) -> dict[str, Any]:
    return {**row, **{name: msgspec.json.decode(row[name]) for name in names}}
