"""How shadows compare."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Integer, String

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "shadow_figures",
        Column("model", String, primary_key=True),
        Column("shadow", Integer, primary_key=True),
        Column("version", Integer, primary_key=True),
        Column("process", String, primary_key=True),
        Column("at_s", Double, nullable=False),
        Column("equal", BigInteger, nullable=False),
        Column("different", BigInteger, nullable=False),
        Column("failed", BigInteger, nullable=False),
        Column("likeness", Double, nullable=False),
        Column("took_s", Double, nullable=False),
        Column("shadow_took_s", Double, nullable=False),
    )
