"""Scopes that only the platform hands out, apart from the others: a router of 0.8.0 does not know them.

Until now metrics needed admin:read. Keys that were made to read them keep that right: those of platform
admins, and those of the operator's own tenant that have admin:read and nothing else, such as Prometheus's.
"""

from __future__ import annotations

import sqlalchemy as sql
from alembic import op
from sqlalchemy import Boolean, Column, Text

revision = "0011"
down_revision = "0010"

_NAMES = ("organisation_id", "user_id", "scopes", "platform_scopes")
_KEYS = sql.table("api_keys", *(sql.column(name, Text) for name in _NAMES))
_USERS = sql.table("users", sql.column("id"), sql.column("platform_admin", Boolean))
_READ, _METRICS = "admin:read", "metrics:read"


def upgrade() -> None:
    op.add_column("api_keys", Column("platform_scopes", Text, nullable=False, server_default=""))
    admins = sql.select(_USERS.c.id).where(_USERS.c.platform_admin)
    of_admins = _KEYS.c.user_id.in_(admins) & _KEYS.c.scopes.contains(_READ)
    of_prometheus = (_KEYS.c.organisation_id == "local") & (_KEYS.c.scopes == _READ)
    op.execute(sql.update(_KEYS).where(of_admins | of_prometheus).values(platform_scopes=_METRICS))


def downgrade() -> None:
    """A key for metrics alone needs admin:read again."""
    alone = _KEYS.c.platform_scopes.contains(_METRICS) & (_KEYS.c.scopes == "")
    op.execute(sql.update(_KEYS).where(alone).values(scopes=_READ))
    op.drop_column("api_keys", "platform_scopes")
