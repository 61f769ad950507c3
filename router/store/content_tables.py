"""The tables of what tenants keep: files and batches, responses, chat completions and conversations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import sqlalchemy as sql
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    Integer,
    LargeBinary,
    RowMapping,
    String,
    Table,
    Text,
)

from router.store.schema import HOLDS_TEXT, table

# `is_whole` is false while pieces are still being added; such a file is nobody's to see.
files = table(
    "files",
    Column("id", String, primary_key=True),
    Column("organisation_id", String, nullable=False),
    Column("filename", String, nullable=False),
    Column("purpose", String, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("created_s", Double, nullable=False),
    Column("expires_s", Double),
    Column("is_whole", Boolean, nullable=False),
    sql.Index("files_by_age", "organisation_id", "created_s", "id"),
)
file_pieces = table(
    "file_pieces",
    Column("file_id", String, sql.ForeignKey("files.id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("data", LargeBinary, nullable=False),
)
# No foreign keys to files: those may be gone while a batch is still remembered.
batches = table(
    "batches",
    Column("id", String, primary_key=True),
    Column("organisation_id", String, nullable=False),
    Column("key_id", String, nullable=False),
    Column("endpoint", String, nullable=False),
    Column("input_file_id", String, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("output_lifetime_s", BigInteger),
    Column("model", String),
    Column("status", String, nullable=False, index=True),
    Column("created_s", Double, nullable=False),
    Column("expires_s", Double, nullable=False),
    Column("in_progress_s", Double),
    Column("finalizing_s", Double),
    Column("completed_s", Double),
    Column("failed_s", Double),
    Column("expired_s", Double),
    Column("cancelling_s", Double),
    Column("cancelled_s", Double),
    Column("output_file_id", String),
    Column("error_file_id", String),
    Column("errors", Text, nullable=False),
    Column("total_count", BigInteger, nullable=False),
    Column("completed_count", BigInteger, nullable=False),
    Column("failed_count", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    # Which router checks the input or writes the output, and until when it may be trusted to.
    Column("worker", String),
    Column("lease_s", Double),
    sql.Index("batches_by_age", "organisation_id", "created_s", "id"),
)
# The request itself stays in the input file, at `start`; `answer` is the line of the output.
batch_lines = table(
    "batch_lines",
    Column("batch_id", String, sql.ForeignKey("batches.id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("custom_id", Text, nullable=False),
    Column("start_bytes", BigInteger, nullable=False),
    Column("size_bytes", Integer, nullable=False),
    Column("state", String, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("worker", String),
    Column("lease_s", Double),
    Column("succeeded", Boolean),
    Column("answer", Text),
    sql.Index("batch_lines_by_state", "batch_id", "state", "number"),
)
# `input` and `output` are the items as they are kept, `body` is the response as it was answered. A response
# in a conversation has its items there too, `conversation_position` is that of the first of them. Until
# `lease_s` the router that makes it can be trusted to; it is None once the response has ended.
responses = table(
    "responses",
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
    Column("size_bytes", BigInteger, nullable=False, server_default="0"),
    Column("lease_s", Double),
    sql.Index("responses_by_age", "organisation_id", "created_s"),
    sql.Index("responses_by_size", "organisation_id", "size_bytes"),
)
# `body` is the completion as it was answered, `messages` are those that it was asked.
chat_completions = table(
    "chat_completions",
    Column("id", String, primary_key=True),
    Column("organisation_id", String, nullable=False),
    Column("user_id", String, nullable=False),
    Column("created_s", Double, nullable=False),
    Column("model", String, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("messages", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    sql.Index("chat_completions_by_age", "organisation_id", "user_id", "created_s", "id"),
    sql.Index("chat_completions_by_size", "organisation_id", "size_bytes"),
)
conversations = table(
    "conversations",
    Column("id", String, primary_key=True),
    Column("organisation_id", String, nullable=False),
    Column("user_id", String, nullable=False),
    Column("created_s", Double, nullable=False),
    Column("updated_s", Double, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False, server_default="0"),
    sql.Index("conversations_by_size", "organisation_id", "size_bytes"),
    sql.Index("conversations_by_use", "organisation_id", "user_id", "updated_s"),
)
# The size of a conversation includes that of its items. `pinned` are the system messages, which are read
# however old they are. The database deletes items with their conversation, also those that an answer adds at
# the same moment.
conversation_items = table(
    "conversation_items",
    Column("id", String, primary_key=True),
    Column("conversation_id", String, sql.ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("pinned", Boolean, nullable=False),
    Column("item", Text, nullable=False),
    Column("tokens", Integer),
    Column("counted_by", String, nullable=False),
    Column("size_bytes", BigInteger, nullable=False, server_default="0"),
    sql.UniqueConstraint("conversation_id", "position"),
    sql.Index("conversation_items_by_size", "conversation_id", "position", "pinned", "size_bytes"),
)


_CONVERSATIONS = (responses, chat_completions, conversations)
for each in (files, file_pieces, batches, batch_lines, *_CONVERSATIONS, conversation_items):
    each.info[HOLDS_TEXT] = True


def export_files(connection: Connection, organisation_id: str) -> dict[str, Any]:
    """Metadata only: the contents may be more than fits in memory, and are read separately."""

    def all_of(table: Table, kind: str) -> list[dict[str, Any]]:
        rows = connection.execute(sql.select(table).where(table.c.organisation_id == organisation_id))
        return [{"object": kind, **row} for row in rows.mappings()]

    return {"files": all_of(files, "file"), "batches": all_of(batches, "batch")}


def pieces(connection: Connection, organisation_id: str) -> Iterator[tuple[str, int, bytes]]:
    """The content of all its files, a piece at a time: id, number of the piece, and the piece."""
    wanted = sql.select(file_pieces).join(files).where(files.c.organisation_id == organisation_id)
    ordered = wanted.order_by(file_pieces.c.file_id, file_pieces.c.number)
    with connection.execute(ordered.execution_options(yield_per=1)) as rows:
        for row in rows:
            yield row.file_id, row.number, row.data


def delete_files(connection: Connection, organisation_id: str) -> None:
    """Files, batches and what they were made of; nothing of them is left."""
    whose = sql.select(batches.c.id).where(batches.c.organisation_id == organisation_id)
    connection.execute(sql.delete(batch_lines).where(batch_lines.c.batch_id.in_(whose)))
    connection.execute(sql.delete(batches).where(batches.c.organisation_id == organisation_id))
    whose = sql.select(files.c.id).where(files.c.organisation_id == organisation_id)
    connection.execute(sql.delete(file_pieces).where(file_pieces.c.file_id.in_(whose)))
    connection.execute(sql.delete(files).where(files.c.organisation_id == organisation_id))


def export_conversations(connection: Connection, organisation_id: str) -> dict[str, Any]:
    """Plain values, ready to be written as JSON."""
    kept = sql.select(responses).where(responses.c.organisation_id == organisation_id)
    chats = sql.select(chat_completions).where(chat_completions.c.organisation_id == organisation_id)
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
        "chat_completions": [
            _decoded(row, "metadata", "body", "messages") for row in connection.execute(chats).mappings()
        ],
        "conversations": [
            {**_decoded(row, "metadata"), "items": of.get(row["id"], [])}
            for row in connection.execute(ours).mappings()
        ],
    }


def delete_conversations(connection: Connection, organisation_id: str) -> None:
    """All of a tenant's; items go with their conversations."""
    for each in _CONVERSATIONS:
        connection.execute(sql.delete(each).where(each.c.organisation_id == organisation_id))


def _decoded(row: RowMapping, *names: str) -> dict[str, Any]:
    return {**row, **{name: msgspec.json.decode(row[name]) for name in names}}
