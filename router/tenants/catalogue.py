"""Keeps this process's copy of keys, limits and prices as new as the store's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sql

from router.core.tenant import NO_LIMITS, Caller, Limits, Price
from router.store.schema import api_keys, organisations, prices, users
from router.tenants.records import all_of, has_keys, key_of, limits_in, organisation_of, price_of, user_of

if TYPE_CHECKING:
    from sqlalchemy import Connection, RowMapping

    from router.store.database import Store
    from router.tenants.keys import Keyring

# Of a tenant that nobody said anything else about.
_EVEN = (1, 1.0)


class Catalogue:
    """Refreshed on the store's thread; `prices` and the keyring are read by the event loop."""

    def __init__(self, store: Store, keyring: Keyring) -> None:
        self._store = store
        self._keyring = keyring
        self._seen = -1
        self._shares: dict[str, tuple[int, float]] = {}
        self.prices: dict[str, Price] = {}
        self.has_keys = False

    def refresh(self) -> bool:
        """Reads the organisations changed since the last time, whole; answers whether there were any."""
        with self._store.read() as connection:
            newest = self._store.last_change(connection)
            if newest == self._seen:
                return False
            self.has_keys = has_keys(connection)
            # Prices first: no key works before the prices that were set before it was made.
            for row in _newer(connection, prices, self._seen):
                self.prices[row["model"]] = price_of(row)
            for row in _newer(connection, organisations, self._seen):
                allowed = limits_in(connection, row["id"])
                self._keyring.replace(row["id"], _callers(connection, row, allowed))
                self._note_share(row["id"], allowed.get(row["id"], NO_LIMITS))
            self._seen = newest
        return True

    def share_of(self, organisation_id: str) -> tuple[int, float]:
        """Its weight among those that want the same model, and the most of the places that it may take."""
        return self._shares.get(organisation_id, _EVEN)

    def _note_share(self, organisation_id: str, whole: Limits) -> None:
        """Kept where it is not as others': a tenant that has gone leaves nothing behind."""
        share = (whole.weight or 1, (whole.slot_percent or 100) / 100)
        if share != _EVEN:
            self._shares[organisation_id] = share
        else:
            self._shares.pop(organisation_id, None)


def _newer(connection: Connection, table: sql.Table, seen: int) -> list[RowMapping]:
    rows = connection.execute(sql.select(table).where(table.c.version > seen))
    return list(rows.mappings())


def _callers(connection: Connection, row: RowMapping, allowed: dict[str, Limits]) -> list[Caller]:
    organisation = organisation_of(row)
    if organisation.deleted_s is not None:
        return []
    people = {each["id"]: user_of(each) for each in all_of(connection, users, organisation.id)}
    keys = [key_of(each) for each in all_of(connection, api_keys, organisation.id)]
    whole = allowed.get(organisation.id, NO_LIMITS)
    return [
        Caller(key, people[key.user_id], organisation, allowed.get(key.id, NO_LIMITS), whole) for key in keys
    ]
