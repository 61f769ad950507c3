"""Files of releases, for hosts that share nothing but the store."""

from __future__ import annotations

import sqlalchemy as sql
from alembic import op
from sqlalchemy import BigInteger, Boolean, Column, Integer, LargeBinary, String

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "release_files",
        Column("sha256", String(64), primary_key=True),
        Column("size_bytes", BigInteger, nullable=False),
        Column("is_whole", Boolean, nullable=False),
    )
    op.create_table(
        "release_file_pieces",
        Column(
            "sha256", String(64), sql.ForeignKey("release_files.sha256", ondelete="CASCADE"), primary_key=True
        ),
        Column("number", Integer, primary_key=True),
        Column("data", LargeBinary, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("release_file_pieces")
    op.drop_table("release_files")
