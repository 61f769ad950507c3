from __future__ import annotations

import threading
from pathlib import Path

import pytest
import sqlalchemy as sql
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from router.content.storage_quota import ROW_BYTES, stored_bytes
from router.core.tenant import Limits
from router.store import content_tables, migrate
from router.store.database import PepperError, Store, sqlite_url
from router.store.migrations import versions
from router.store.schema import METADATA, counters, limits, organisations, prices
from router.tenants.keys import fingerprint
from router.tenants.records import limits_of
from tests.router.tenants.values import PEPPER

# Those who define tables; what is not imported is not in the metadata.
TABLES_OF = (content_tables,)
NEWEST = max(path.stem[1:5] for path in Path(versions.__path__[0]).glob("r*.py"))


def test_the_migrations_make_the_schema_that_the_code_uses(store: Store) -> None:
    with store.begin() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), METADATA)
        assert connection.scalar(sql.text("SELECT version_num FROM alembic_version")) == NEWEST
    assert differences == []


def test_preparing_a_store_again_changes_nothing(store: Store) -> None:
    with store.begin() as connection:
        assert store.next_change(connection) == 1
    store.prepare(fingerprint(PEPPER))
    with store.read() as connection:
        assert store.last_change(connection) == 1


def test_a_store_of_the_previous_version_keeps_its_limits_and_gets_shares(empty_store_url: str) -> None:
    store = Store(empty_store_url)
    migrate.upgrade(store.engine, "0004")
    row = {"id": "org-1", "name": "acme", "created_s": 1.0, "deleted_s": None, "version": 0}
    limited = (
        "INSERT INTO limits (subject, organisation_id, tokens_per_min, budget_is_hard) VALUES (%s, TRUE)"
    )
    with store.begin() as connection:
        connection.execute(sql.insert(organisations).values(row))
        connection.execute(sql.text(limited % "'org-1', 'org-1', 5"))
    store.prepare(fingerprint(PEPPER))
    with store.read() as connection:
        (found,) = connection.execute(sql.select(limits)).mappings()
        differences = compare_metadata(MigrationContext.configure(connection), METADATA)
    assert limits_of(found) == Limits(tokens_per_min=5)
    assert differences == []
    store.close()


def test_a_store_of_the_previous_version_learns_the_sizes_of_its_conversations(empty_store_url: str) -> None:
    store = Store(empty_store_url)
    migrate.upgrade(store.engine, "0006")
    with store.begin() as connection:
        for statement in (
            "INSERT INTO conversations (id, organisation_id, user_id, created_s, updated_s, metadata) "
            "VALUES ('conv_1', 'org-1', 'ann', 1, 1, '{}')",
            "INSERT INTO conversation_items (id, conversation_id, position, pinned, item, counted_by) "
            "VALUES ('msg_1', 'conv_1', 1, FALSE, 'äöü', '')",
            "INSERT INTO responses (id, organisation_id, user_id, created_s, body, input, output) "
            "VALUES ('resp_1', 'org-1', 'ann', 1, '12', '345', '6')",
        ):
            connection.execute(sql.text(statement))
    store.prepare(fingerprint(PEPPER))
    with store.read() as connection:
        of_items = connection.scalar(sql.select(content_tables.conversation_items.c.size_bytes))
        assert of_items == 6 + ROW_BYTES
        assert stored_bytes(connection, "org-1") == (2 + ROW_BYTES) + of_items + (6 + ROW_BYTES)
    store.close()


def test_migrations_are_in_files_of_their_numbers_which_tell_whether_a_store_is_up_to_date() -> None:
    scripts = ScriptDirectory(str(Path(migrate.__file__).parent / "migrations"))
    assert migrate.revisions() == tuple(reversed([each.revision for each in scripts.walk_revisions()]))


def test_a_schema_from_the_future_is_refused_with_a_clear_message(store: Store) -> None:
    with store.begin() as connection:
        connection.execute(sql.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(migrate.SchemaError, match=r"has schema 9999, which a newer version .* up to \d{4}:"):
        store.prepare(fingerprint(PEPPER))


def test_a_router_with_another_pepper_is_refused(store: Store) -> None:
    with pytest.raises(PepperError, match="created with another pepper"):
        store.prepare(fingerprint(bytes(32)))


def test_a_migration_that_fails_half_way_leaves_nothing_behind(empty_store_url: str) -> None:
    store = Store(empty_store_url)
    with store.begin() as connection:
        connection.execute(sql.text("CREATE TABLE usage (in_the_way INTEGER)"))
    with pytest.raises(sql.exc.DBAPIError, match="already exists"):
        store.prepare(fingerprint(PEPPER))
    assert sql.inspect(store.engine).get_table_names() == ["usage"]
    store.close()


def test_routers_that_start_together_migrate_once(empty_store_url: str) -> None:
    stores = [Store(empty_store_url) for _ in range(4)]
    failures: list[BaseException] = []

    def prepare(store: Store) -> None:
        try:
            store.prepare(fingerprint(PEPPER))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=prepare, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for store in stores:
        store.close()
    assert failures == []


def test_changes_are_numbered_in_the_order_of_their_commits(store: Store) -> None:
    seen: list[int] = []

    def change() -> None:
        for _ in range(10):
            with store.begin() as connection:
                number = store.next_change(connection)
                seen.append(number)

    threads = [threading.Thread(target=change) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == list(range(1, 41))


def test_a_failed_transaction_leaves_nothing_behind(store: Store) -> None:
    def fail() -> None:
        with store.begin() as connection:
            store.next_change(connection)
            connection.execute(
                store.insert_or_update(
                    prices, {"model": "smol", "prompt": 1, "cached_prompt": 1, "completion": 1, "version": 1}
                )
            )
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        fail()
    with store.read() as connection:
        assert store.last_change(connection) == 0
        assert connection.execute(sql.select(prices)).all() == []
        assert connection.scalar(sql.select(sql.func.count()).select_from(counters)) == 1


def test_a_read_transaction_sees_one_moment(store: Store) -> None:
    with store.read() as reader:
        assert store.last_change(reader) == 0
        with store.begin() as writer:
            store.next_change(writer)
        assert store.last_change(reader) == 0
    with store.read() as reader:
        assert store.last_change(reader) == 1


def test_sqlite_reads_while_another_transaction_writes(tmp_path: Path) -> None:
    store = Store(sqlite_url(tmp_path / "tenants.db"))
    store.prepare(fingerprint(PEPPER))
    with store.begin() as writer:
        store.next_change(writer)
        with store.read() as reader:
            assert store.last_change(reader) == 0
            assert reader.scalar(sql.text("PRAGMA journal_mode")) == "wal"
    store.close()


def test_unsupported_databases_are_refused() -> None:
    with pytest.raises(ValueError, match="mysql is not supported; use sqlite or postgresql"):
        Store("mysql://root@localhost/x")
