"""Responses, conversations and their items."""

from __future__ import annotations

import sqlalchemy as sql
from alembic import op
from sqlalchemy import BigInteger, Boolean, Column, Double, Integer, String, Text

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
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
    )
    op.create_index("responses_by_age", "responses", ["organisation_id", "created_s"])
    op.create_table(
        "conversations",
        Column("id", String, primary_key=True),
        Column("organisation_id", String, nullable=False),
        Column("user_id", String, nullable=False),
        Column("created_s", Double, nullable=False),
        Column("updated_s", Double, nullable=False),
        Column("metadata", Text, nullable=False),
    )
    op.create_index("conversations_by_use", "conversations", ["organisation_id", "user_id", "updated_s"])
    op.create_table(
        "conversation_items",
        Column("id", String, primary_key=True),
        Column(
            "conversation_id", String, sql.ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False
        ),
        Column("position", BigInteger, nullable=False),
        Column("pinned", Boolean, nullable=False),
        Column("item", Text, nullable=False),
        Column("tokens", Integer),
        Column("counted_by", String, nullable=False),
        sql.UniqueConstraint("conversation_id", "position"),
    )


def downgrade() -> None:
    for table in ("conversation_items", "conversations", "responses"):
        op.drop_table(table)
