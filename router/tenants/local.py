"""The tenant of a router without keys: whoever reaches the loopback address of this machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import sqlalchemy as sql

from router.core.tenant import LOCAL
from router.store.schema import organisations

if TYPE_CHECKING:
    from router.store.database import Store


def ensure_local(store: Store) -> None:
    """Its row in the store; deleting this tenant empties it, and the next start makes it anew."""
    with store.begin() as connection:
        found = sql.select(organisations.c.deleted_s).where(organisations.c.id == LOCAL)
        row = connection.execute(found).first()
        if row is None or row.deleted_s is not None:
            version = store.next_change(connection)
            fresh = {"id": LOCAL, "name": LOCAL, "created_s": time.time(), "deleted_s": None}
            connection.execute(store.insert_or_update(organisations, {**fresh, "version": version}))
