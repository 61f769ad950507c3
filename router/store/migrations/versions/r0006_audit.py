"""With which key and from where something was done or refused."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, String

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    for name in ("key_id", "address"):
        op.add_column("audit", Column(name, String, nullable=False, server_default=""))


def downgrade() -> None:
    for name in ("address", "key_id"):
        op.drop_column("audit", name)
