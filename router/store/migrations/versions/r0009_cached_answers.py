"""For how long the answers of an organisation may be cached."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Integer

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("limits", Column("answers_cached_s", Integer))


def downgrade() -> None:
    op.drop_column("limits", "answers_cached_s")
