"""The schema goes down to every earlier version and up again, and what both know is kept."""

from __future__ import annotations

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from router.store import migrate
from router.store.database import Store
from router.store.schema import METADATA
from tests.router.store.samples import fill, rows_of

KNOWN = migrate.revisions()


def test_a_store_goes_down_to_every_earlier_version_and_up_from_it_with_its_rows(store: Store) -> None:
    fill(store)
    rows = {KNOWN[-1]: rows_of(store)}
    for version in reversed(KNOWN[:-1]):
        migrate.downgrade(store.engine, version)
        rows[version] = rows_of(store)
        assert present(store) == version
    assert all(rows[KNOWN[0]][name] for name in ("organisations", "users", "api_keys", "usage", "audit"))
    for version in KNOWN[1:]:
        migrate.upgrade(store.engine, version)
        assert present(store) == version
        for name, found in rows_of(store).items():
            assert len(found) == len(rows[KNOWN[0]].get(name, ())), name
    with store.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
    migrate.downgrade(store.engine, KNOWN[0])
    assert rows_of(store) == rows[KNOWN[0]]


def test_a_downgrade_to_what_is_not_known_or_newer_is_refused(store: Store) -> None:
    migrate.downgrade(store.engine, KNOWN[-2])
    with pytest.raises(migrate.SchemaError, match=r"there is no schema 9999; there are 0001, "):
        migrate.downgrade(store.engine, "9999")
    with pytest.raises(migrate.SchemaError, match=f"has schema {KNOWN[-2]}, which is older than"):
        migrate.downgrade(store.engine, KNOWN[-1])
    assert present(store) == KNOWN[-2]


def present(store: Store) -> str | None:
    with store.read() as connection:
        return migrate.pending(connection)[0]
