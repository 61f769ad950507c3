"""What was deleted is in no file of SQLite any more."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sql

from router.store import content_tables
from router.store.database import Store, sqlite_url
from router.tenants.administration import Administration
from router.tenants.rbac import SYSTEM
from tests.router.running import running_router
from tests.router.store.test_retention import filled
from tests.router.stores import write_store
from tests.router.tenants.values import PEPPER

SECRET = "the surname is Wintergreen-7f3a"


def is_on_disk(directory: Path) -> bool:
    return any(SECRET.encode() in path.read_bytes() for path in directory.glob("store.db*"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(sqlite_url(write_store(tmp_path / "store.db")))


def keep(store: Store, organisation_id: str = "org-1") -> None:
    row = filled(content_tables.responses, id="resp-1", organisation_id=organisation_id, body=SECRET)
    with store.begin() as connection:
        connection.execute(sql.insert(content_tables.responses).values(row))


def delete(store: Store) -> None:
    with store.begin() as connection:
        connection.execute(sql.delete(content_tables.responses))


def test_deleted_text_is_erased_from_the_log_and_the_database(store: Store, tmp_path: Path) -> None:
    keep(store)
    assert is_on_disk(tmp_path)
    delete(store)
    assert is_on_disk(tmp_path), "SQLite alone leaves it in its log"
    assert store.erase_deleted()
    assert not is_on_disk(tmp_path)


def test_a_reader_delays_the_erasing_and_does_not_prevent_it(store: Store, tmp_path: Path) -> None:
    keep(store)
    with store.read() as reading:
        reading.execute(sql.select(content_tables.responses)).all()
        delete(store)
        assert not store.erase_deleted()
    assert store.erase_deleted()
    assert not is_on_disk(tmp_path)


def test_what_the_command_line_deletes_is_erased_beside_a_running_router(
    store: Store, tmp_path: Path
) -> None:
    administration = Administration(store, PEPPER)
    tenant = administration.create_organisation(SYSTEM, "acme")
    keep(store, tenant.id)
    command_line = Store(sqlite_url(tmp_path / "store.db"))
    Administration(command_line, PEPPER).delete_organisation(SYSTEM, tenant.id)
    command_line.close()
    assert not is_on_disk(tmp_path)


async def test_a_router_erases_what_its_clients_delete(tmp_path: Path) -> None:
    async with running_router(data_dir=tmp_path) as router:
        made = await router.http.post("/v1/responses", json={"model": "tiny", "input": SECRET})
        path = f"/v1/responses/{made.json()['id']}"
        assert is_on_disk(tmp_path)
        assert (await router.http.delete(path)).status_code == 200
        await router.until(lambda: not is_on_disk(tmp_path))
