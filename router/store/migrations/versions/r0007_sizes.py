"""Sizes of conversations, their items and responses: they count in what an organisation may keep."""

from __future__ import annotations

import sqlalchemy as sql
from alembic import op
from sqlalchemy import BigInteger, Column

revision = "0007"
down_revision = "0006"
_ROW_BYTES = 256


def upgrade() -> None:
    for table in ("conversations", "conversation_items", "responses"):
        op.add_column(table, Column("size_bytes", BigInteger, nullable=False, server_default="0"))
    _fill()
    op.create_index("conversations_by_size", "conversations", ["organisation_id", "size_bytes"])
    op.create_index("responses_by_size", "responses", ["organisation_id", "size_bytes"])
    by_size = ["conversation_id", "position", "pinned", "size_bytes"]
    op.create_index("conversation_items_by_size", "conversation_items", by_size)


def downgrade() -> None:
    for table in ("conversation_items", "responses", "conversations"):
        op.drop_index(f"{table}_by_size", table)
        op.drop_column(table, "size_bytes")


def _fill() -> None:
    is_postgres = op.get_bind().dialect.name == "postgresql"

    def size(*columns: str) -> str:
        octets = "octet_length({})" if is_postgres else "length(CAST({} AS BLOB))"
        return " + ".join([*(octets.format(column) for column in columns), str(_ROW_BYTES)])

    of_items = (
        "SELECT coalesce(sum(conversation_items.size_bytes), 0) FROM conversation_items "
        "WHERE conversation_items.conversation_id = conversations.id"
    )
    for statement in (
        f"UPDATE conversation_items SET size_bytes = {size('item')}",
        f"UPDATE responses SET size_bytes = {size('body', 'input', 'output')}",
        f"UPDATE conversations SET size_bytes = {size('metadata')} + ({of_items})",
    ):
        op.execute(sql.text(statement))
