"""Responses that are made in the background, and chat completions that are stored."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Double, String, Text

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("responses", Column("lease_s", Double))
    op.create_table(
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
    )
    by_age = ["organisation_id", "user_id", "created_s", "id"]
    op.create_index("chat_completions_by_age", "chat_completions", by_age)
    op.create_index("chat_completions_by_size", "chat_completions", ["organisation_id", "size_bytes"])


def downgrade() -> None:
    op.drop_table("chat_completions")
    op.drop_column("responses", "lease_s")
