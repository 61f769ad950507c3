"""Files in pieces, and batches with their lines."""

from __future__ import annotations

import sqlalchemy as sql
from alembic import op
from sqlalchemy import BigInteger, Boolean, Column, Double, Integer, LargeBinary, String, Text

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    _create_files()
    _create_batches()
    _create_lines()


def _create_files() -> None:
    op.create_table(
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
    )
    op.create_index("files_by_age", "files", ["organisation_id", "created_s", "id"])
    op.create_table(
        "file_pieces",
        Column("file_id", String, sql.ForeignKey("files.id"), primary_key=True),
        Column("number", Integer, primary_key=True),
        Column("data", LargeBinary, nullable=False),
    )


def _create_batches() -> None:
    op.create_table(
        "batches",
        Column("id", String, primary_key=True),
        Column("organisation_id", String, nullable=False),
        Column("key_id", String, nullable=False),
        Column("endpoint", String, nullable=False),
        Column("input_file_id", String, nullable=False),
        Column("metadata", Text, nullable=False),
        Column("output_lifetime_s", BigInteger),
        Column("model", String),
        Column("status", String, nullable=False),
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
        Column("worker", String),
        Column("lease_s", Double),
    )
    op.create_index("batches_by_age", "batches", ["organisation_id", "created_s", "id"])
    op.create_index("ix_batches_status", "batches", ["status"])


def _create_lines() -> None:
    op.create_table(
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
    )
    op.create_index("batch_lines_by_state", "batch_lines", ["batch_id", "state", "number"])


def downgrade() -> None:
    for table in ("batch_lines", "batches", "file_pieces", "files"):
        op.drop_table(table)
