"""A store is written to a file and comes back from it whole, from either database into either."""

from __future__ import annotations

import gzip
import json
import threading
import zlib
from pathlib import Path

import pytest
import sqlalchemy as sql

from router.core.tenant import Caller, Role
from router.store import migrate
from router.store.backup import BackupError, back_up, restore
from router.store.backup_signature import SIGNATURE_BYTES, SignedContent
from router.store.database import PepperError, Store, sqlite_url
from router.store.schema import leases, organisations, release_events, users
from router.store.schema import usage as usage_table
from router.tenants.administration import Administration
from router.tenants.keys import Catalogue, Keyring, fingerprint
from router.tenants.rbac import SYSTEM
from router.tenants.tenancy import (
    StoreUnusable,
    TenancySettings,
    backup_signer,
    open_store,
    opening_store,
)
from router.tenants.treasury import Treasury
from tests.router.store.samples import fill, rows_of
from tests.router.tenants.values import NOW_S, PEPPER, usage

FINGERPRINT = fingerprint(PEPPER)
SIGNER = backup_signer(PEPPER)
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
    made = back_up(store, file, SIGNER)
    assert file.stat().st_mode & 0o777 == 0o600
    urls = [sqlite_url(tmp_path / "other.db"), *([empty_store_url] if database == "postgresql" else [])]
    for url in urls:
        other = Store(url)
        assert restore(other, file, SIGNER, NOW_S) == made
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
    assert back_up(old, tmp_path / "store.backup", SIGNER).schema == version
    store = Store(sqlite_url(tmp_path / "new.db"))
    restore(store, tmp_path / "store.backup", SIGNER, NOW_S)
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
    restore(restored, file, SIGNER, NOW_S)
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
    back_up(store, file, SIGNER)
    lines = gzip.decompress(file.read_bytes()).splitlines(keepends=True)

    def written(name: str, line: bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(gzip.compress(line))
        return path

    head = json.loads(lines[0])
    newer, other = {**head, "schema": "9999"}, {**head, "format": 9}
    truncated = tmp_path / "truncated.backup"
    truncated.write_bytes(file.read_bytes()[:-300])
    for bad, complaint in (
        (file, "the store is not empty: --replace"),
        (written("newer", json.dumps(newer).encode()), "a newer version wrote it: it has schema 9999"),
        (written("other", json.dumps(other).encode()), "is not a backup that this version can read"),
        (written("words", b"hello"), "is damaged or not a backup"),
        (written("nothing", b""), "is not a backup that this version can read"),
    ):
        with pytest.raises(BackupError, match=complaint):
            restore(store, bad, SIGNER, NOW_S, unsigned=True)
    with pytest.raises(BackupError, match="is damaged"):
        restore(store, truncated, SIGNER, NOW_S, replace=True, unsigned=True)
    for pepper in (bytes(32), PEPPER[::-1]):
        with pytest.raises(PepperError, match="another pepper"):
            restore(store, file, backup_signer(pepper), NOW_S, replace=True)
    assert rows_of(store) == before


def rewritten(file: Path, old: bytes, new: bytes) -> bytes:
    """The content of a backup with something else in it, packed anew, and the signature that it had."""
    members, rest = [], file.read_bytes()
    while rest:
        unpacking = zlib.decompressobj(wbits=31)
        members.append((unpacking.decompress(rest), rest[: len(rest) - len(unpacking.unused_data)]))
        rest = unpacking.unused_data
    (content, _), (_, signature) = members
    assert content.count(old) == 1
    return gzip.compress(content.replace(old, new)) + signature


def promote_a_member(store: Store, tmp_path: Path) -> tuple[Path, bytes]:
    """A backup, and the same with the right to administer the platform for a user who had none."""
    admin = Administration(store, PEPPER)
    tenant = admin.create_organisation(SYSTEM, "acme")
    user = admin.create_user(SYSTEM, tenant.id, "mallory", Role.MEMBER)
    file = tmp_path / "store.backup"
    back_up(store, file, SIGNER)
    (row,) = (
        line
        for line in gzip.decompress(file.read_bytes()).splitlines()
        if line.startswith(b"[") and user.id in json.loads(line) and b'"mallory",' in line
    )
    assert b"false" in row
    return file, rewritten(file, row, row.replace(b"false", b"true"))


def admins_of(store: Store) -> list[str]:
    with store.read() as connection:
        return list(connection.scalars(sql.select(users.c.name).where(users.c.platform_admin)))


def test_a_backup_in_which_somebody_made_himself_an_administrator_is_refused(
    store: Store, tmp_path: Path
) -> None:
    file, altered = promote_a_member(store, tmp_path)
    before = rows_of(store)
    file.write_bytes(altered)
    for unsigned in (False, True):  # it has a signature, which is not its own
        with pytest.raises(BackupError, match="was changed or damaged after it was made"):
            restore(store, file, SIGNER, NOW_S, replace=True, unsigned=unsigned)
    assert rows_of(store) == before


@pytest.mark.parametrize("of_the_file", [0.1, 0.5, 0.9])
def test_a_backup_with_one_changed_bit_is_refused_before_it_is_unpacked(
    store: Store, tmp_path: Path, of_the_file: float
) -> None:
    file, _ = promote_a_member(store, tmp_path)
    content = bytearray(file.read_bytes())
    content[int(len(content) * of_the_file)] ^= 1
    file.write_bytes(content)
    with pytest.raises(BackupError, match=r"is not signed|was changed or damaged after it was made"):
        restore(store, file, SIGNER, NOW_S, replace=True)


def test_a_backup_of_an_earlier_version_or_without_its_signature_is_restored_only_when_told_so(
    store: Store, tmp_path: Path
) -> None:
    file, altered = promote_a_member(store, tmp_path)
    signature = file.read_bytes()[-SIGNATURE_BYTES:]
    for content in (altered, file.read_bytes()):
        file.write_bytes(content.removesuffix(signature))
        before = rows_of(store)
        with pytest.raises(
            BackupError, match=r"is not signed, .* 0\.8\.0 and before .* --unsigned restores it"
        ):
            restore(store, file, SIGNER, NOW_S, replace=True)
        assert rows_of(store) == before
    assert restore(store, file, SIGNER, NOW_S, replace=True, unsigned=True).rows > 0
    assert admins_of(store) == []


def test_a_backup_that_is_changed_while_it_is_restored_leaves_the_store_as_it_was(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the check and the use, as somebody may who writes into the same file."""
    file, altered = promote_a_member(store, tmp_path)
    before, check = rows_of(store), SignedContent.check

    def check_and_change(content: SignedContent) -> None:
        check(content)
        file.write_bytes(altered)

    monkeypatch.setattr(SignedContent, "check", check_and_change)
    with pytest.raises(BackupError, match=r"was changed or damaged after it was made|is damaged"):
        restore(store, file, SIGNER, NOW_S, replace=True)
    assert rows_of(store) == before


def test_a_store_of_another_pepper_is_not_backed_up_with_a_signature_that_would_not_be_known(
    store: Store, tmp_path: Path
) -> None:
    store.prepare(FINGERPRINT)
    with pytest.raises(PepperError, match="another pepper, which signs its backups too"):
        back_up(store, tmp_path / "store.backup", backup_signer(bytes(32)))
    assert list(tmp_path.glob("*.backup")) == []


def test_version_0_8_0_reads_past_the_signature(store: Store, tmp_path: Path) -> None:
    """It took a line that is an object for the name of the next table, of which there are no rows."""
    file, _ = promote_a_member(store, tmp_path)
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        head, *_, last = map(json.loads, lines)
    assert head["format"] == 1
    assert {"schema", "pepper"} < head.keys()
    assert last["signature"]["pepper"] == FINGERPRINT


def test_a_restore_under_load_loses_no_request_and_routers_know_at_once(
    store: Store, store_url: str, tmp_path: Path
) -> None:
    """Usage is written all the while. Who was made since the backup is unknown again, and leases stay."""
    admin = Administration(store, PEPPER)
    old = admin.create_organisation(SYSTEM, "old")
    owner = admin.create_user(SYSTEM, old.id, "ann", Role.OWNER)
    _, old_key = admin.create_key(SYSTEM, old.id, owner.id, "laptop")
    back_up(store, tmp_path / "store.backup", SIGNER)
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
    restore(store, tmp_path / "store.backup", SIGNER, NOW_S, replace=True)
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
