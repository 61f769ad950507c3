"""A store is written to a file and comes back from it whole, from either database into either."""

from __future__ import annotations

import gzip
import json
import threading
from pathlib import Path

import pytest
import sqlalchemy as sql

from router.core.tenant import Caller, Role
from router.store import migrate
from router.store.backup import BackupError, back_up, restore
from router.store.database import PepperError, Store, sqlite_url
from router.store.schema import leases, organisations, release_events
from router.store.schema import usage as usage_table
from router.tenants.administration import Administration
from router.tenants.keys import Catalogue, Keyring, fingerprint
from router.tenants.rbac import SYSTEM
from router.tenants.tenancy import StoreUnusable, TenancySettings, open_store, opening_store
from router.tenants.treasury import Treasury
from tests.router.store.samples import fill, rows_of
from tests.router.tenants.values import NOW_S, PEPPER, usage

FINGERPRINT = fingerprint(PEPPER)
# Numbers of changes go on, for routers that read what is newer; leases are of routers that run.
RUNNING = ("counters", "leases", "control")


def comparable(store: Store) -> dict[str, list[tuple[object, ...]]]:
    rows = {name: found for name, found in rows_of(store).items() if name not in RUNNING}
    for name in ("organisations", "prices"):
        rows[name] = [row[:-1] for row in rows[name]]  # without `version`, the last by name
    return rows


def test_all_tables_come_back_in_the_other_database_with_every_value(
    store: Store, database: str, empty_store_url: str, tmp_path: Path
) -> None:
    fill(store)
    file = tmp_path / "store.backup"
    made = back_up(store, file)
    assert file.stat().st_mode & 0o777 == 0o600
    urls = [sqlite_url(tmp_path / "other.db"), *([empty_store_url] if database == "postgresql" else [])]
    for url in urls:
        other = Store(url)
        assert restore(other, file, FINGERPRINT, NOW_S) == made
        assert comparable(other) == comparable(store)
        other.prepare(FINGERPRINT)
        with other.begin() as connection:  # numbers of rows go on behind those that were restored
            row = {"at_s": 1.0, "model": "m", "version": 1, "what": "add", "reason": ""}
            number = connection.execute(sql.insert(release_events).values(row).returning(release_events.c.id))
            assert number.scalar_one() == 8
        other.close()


@pytest.mark.parametrize("version", [migrate.revisions()[0], migrate.revisions()[-2]])
def test_a_backup_of_an_earlier_version_is_brought_up_to_date(tmp_path: Path, version: str) -> None:
    """It has the tables and columns that the store has."""
    old = Store(sqlite_url(tmp_path / "old.db"))
    migrate.upgrade(old.engine, version)
    fill(old)
    assert back_up(old, tmp_path / "store.backup").schema == version
    store = Store(sqlite_url(tmp_path / "new.db"))
    restore(store, tmp_path / "store.backup", FINGERPRINT, NOW_S)
    with store.read() as connection:
        assert migrate.pending(connection) == (migrate.revisions()[-1],) * 2
        assert connection.scalar(sql.select(organisations.c.id)) == "sample-1"
    old.close()
    store.close()


def test_a_store_of_an_earlier_version_is_backed_up_before_it_is_migrated(
    empty_store_url: str, tmp_path: Path
) -> None:
    version = migrate.revisions()[-2]
    settings = TenancySettings(empty_store_url, PEPPER, tmp_path / "spool")
    old = Store(empty_store_url)
    migrate.upgrade(old.engine, version)
    fill(old)
    rows = comparable(old)
    old.close()
    for _ in range(2):  # and not again, when it has been
        with open_store(settings) as store, store.read() as connection:
            assert migrate.pending(connection)[0] == migrate.revisions()[-1]
    (file,) = (tmp_path / "backups").iterdir()
    assert file.name.startswith(f"schema-{version}-")
    restored = Store(sqlite_url(tmp_path / "restored.db"))
    restore(restored, file, FINGERPRINT, NOW_S)
    migrate.downgrade(restored.engine, version)
    assert comparable(restored) == rows
    restored.close()


def test_a_store_that_cannot_be_backed_up_is_not_migrated(tmp_path: Path) -> None:
    version = migrate.revisions()[-2]
    settings = TenancySettings(sqlite_url(tmp_path / "store.db"), PEPPER, tmp_path / "spool")
    old = Store(settings.store_url)
    migrate.upgrade(old.engine, version)
    (tmp_path / "backups").write_text("a file where the directory should be")
    refused = pytest.raises(StoreUnusable, match=f"has schema {version} and could not be backed up before")
    with refused, opening_store(), open_store(settings):
        pass
    with old.read() as connection:
        assert migrate.pending(connection)[0] == version
    old.close()


def test_what_cannot_be_restored_is_refused_and_changes_nothing(store: Store, tmp_path: Path) -> None:
    fill(store)
    before, file = rows_of(store), tmp_path / "store.backup"
    back_up(store, file)
    lines = gzip.decompress(file.read_bytes()).splitlines(keepends=True)

    def written(name: str, line: bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(gzip.compress(line))
        return path

    head = json.loads(lines[0])
    newer, other = {**head, "schema": "9999"}, {**head, "format": 9}
    for bad, complaint in (
        (file, "the store is not empty: --replace"),
        (written("newer", json.dumps(newer).encode()), "a newer version wrote it: it has schema 9999"),
        (written("other", json.dumps(other).encode()), "is not a backup that this version can read"),
        (written("words", b"hello"), "is damaged or not a backup"),
    ):
        with pytest.raises(BackupError, match=complaint):
            restore(store, bad, FINGERPRINT, NOW_S)
    truncated = tmp_path / "truncated.backup"
    truncated.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(BackupError, match="is damaged"):
        restore(store, truncated, FINGERPRINT, NOW_S, replace=True)
    with pytest.raises(PepperError, match="another pepper"):
        restore(store, file, fingerprint(bytes(32)), NOW_S, replace=True)
    assert rows_of(store) == before


def test_a_restore_under_load_loses_no_request_and_routers_know_at_once(
    store: Store, store_url: str, tmp_path: Path
) -> None:
    """Usage is written all the while. Who was made since the backup is unknown again, and leases stay."""
    admin = Administration(store, PEPPER)
    old = admin.create_organisation(SYSTEM, "old")
    owner = admin.create_user(SYSTEM, old.id, "ann", Role.OWNER)
    _, old_key = admin.create_key(SYSTEM, old.id, owner.id, "laptop")
    back_up(store, tmp_path / "store.backup")
    new = admin.create_organisation(SYSTEM, "new")
    owner = admin.create_user(SYSTEM, new.id, "ben", Role.OWNER)
    _, new_key = admin.create_key(SYSTEM, new.id, owner.id, "laptop")
    with store.begin() as connection:
        lease = {"subject": "s", "month": "2026-01", "process": "p", "amount": 1, "expires_s": NOW_S}
        connection.execute(sql.insert(leases).values(lease))
    keyring = Keyring(PEPPER)
    router = Catalogue(store, keyring)
    router.refresh()
    assert {verified(keyring, key) for key in (old_key, new_key)} == {"old", "new"}

    beside = Store(store_url)
    treasury, is_over = Treasury(beside, "writer"), threading.Event()
    charged: list[str] = []

    def charge() -> None:
        while not is_over.is_set():
            record = usage(f"r{len(charged)}")
            treasury.charge([record])
            charged.append(record.request_id)

    writing = threading.Thread(target=charge)
    writing.start()
    restore(store, tmp_path / "store.backup", FINGERPRINT, NOW_S, replace=True)
    restored_at = len(charged)
    while len(charged) < restored_at + 3:
        pass
    is_over.set()
    writing.join()
    beside.close()
    router.refresh()
    assert verified(keyring, old_key) == "old"
    assert verified(keyring, new_key) is None
    with store.read() as connection:
        assert connection.scalar(sql.select(leases.c.amount)) == 1
        billed = set(connection.scalars(sql.select(usage_table.c.request_id)))
    assert set(charged[restored_at + 1 :]) <= billed


def verified(keyring: Keyring, key: str) -> str | None:
    caller = keyring.verify(key, NOW_S)
    return caller.organisation.name if isinstance(caller, Caller) else None
