from __future__ import annotations

import asyncio
import queue
from typing import Any

import pytest
import sqlalchemy as sql

from router.store import content_tables, retention, schema
from router.store.database import Store
from router.store.retention import Retention
from router.store.schema import METADATA
from router.store.schema import usage as usage_table
from router.tenants.administration import Administration
from router.tenants.rbac import SYSTEM
from router.tenants.treasury import Treasury
from tests.pace import patience
from tests.router.tenants.values import NOW_S, PEPPER, usage
from tests.waiting import until

DAY_S = 86_400.0
OLD_S = NOW_S - 31 * DAY_S


def filled(table: sql.Table, **values: object) -> dict[str, object]:
    """A row with something in every column that needs it."""
    samples: dict[type, object] = {str: "{}", int: 1, float: NOW_S, bool: True, bytes: b"data"}
    needed = {
        column.name: samples[column.type.python_type] for column in table.columns if not column.nullable
    }
    return {**needed, **values}


def keep(store: Store, organisation_id: str, at_s: float, status: str = "completed") -> None:
    """A file, a batch, a response and a conversation of that time, with their parts."""
    name = f"{organisation_id}-{at_s:.0f}-{status}"
    mine = {"organisation_id": organisation_id, "created_s": at_s}
    rows: list[tuple[sql.Table, dict[str, object]]] = [
        (content_tables.files, {"id": name, **mine}),
        (content_tables.file_pieces, {"file_id": name}),
        (content_tables.batches, {"id": name, "input_file_id": name, "status": status, **mine}),
        (content_tables.batch_lines, {"batch_id": name}),
        (content_tables.responses, {"id": name, **mine}),
        (content_tables.conversations, {"id": name, "updated_s": at_s, **mine}),
        (content_tables.conversation_items, {"id": name, "conversation_id": name}),
    ]
    with store.begin() as connection:
        for table, values in rows:
            connection.execute(sql.insert(table).values(filled(table, **values)))


def counts(store: Store) -> dict[str, int]:
    tables = [METADATA.tables[name] for name in ("files", "file_pieces", "batches", "batch_lines")]
    tables += [
        content_tables.responses,
        content_tables.conversations,
        content_tables.conversation_items,
        usage_table,
    ]
    with store.read() as connection:
        counted = {
            table.name: connection.scalar(sql.select(sql.func.count()).select_from(table)) for table in tables
        }
    return {name: count for name, count in counted.items() if count}


def test_rows_older_than_the_limit_are_deleted_with_their_parts(store: Store) -> None:
    keep(store, "org-1", OLD_S)
    Treasury(store, "one").charge([usage("old", started_s=OLD_S)])
    keep(store, "org-1", NOW_S)
    Treasury(store, "one").charge([usage("new")])
    before = counts(store)
    assert set(before.values()) == {2}
    assert Retention(store, 30, clock=lambda: NOW_S).delete_old() == 5
    assert counts(store) == dict.fromkeys(before, 1)
    assert Retention(store, 30, clock=lambda: NOW_S).delete_old() == 0


def test_a_running_batch_keeps_its_input(store: Store) -> None:
    keep(store, "org-1", OLD_S, status="in_progress")
    Retention(store, 30, clock=lambda: NOW_S).delete_old()
    assert counts(store) == {"files": 1, "file_pieces": 1, "batches": 1, "batch_lines": 1}


def test_many_rows_are_deleted_in_small_transactions(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_ROWS_AT_ONCE", 2)
    Treasury(store, "one").charge([usage(f"old-{number}", started_s=OLD_S) for number in range(7)])
    keep(store, "org-1", OLD_S)
    lines = [
        filled(content_tables.batch_lines, batch_id=f"org-1-{OLD_S:.0f}-completed", number=number)
        for number in range(2, 9)
    ]
    with store.begin() as connection:
        connection.execute(sql.insert(content_tables.batch_lines), lines)
    deleted = [0]
    sql.event.listen(store.engine, "begin", lambda _: deleted.append(0))

    def count(*executed: Any) -> None:
        _, cursor, statement, *_ = executed
        deleted[-1] += cursor.rowcount if statement.startswith("DELETE") else 0

    sql.event.listen(store.engine, "after_cursor_execute", count)
    assert Retention(store, 30, clock=lambda: NOW_S).delete_old() == 11
    assert counts(store) == {}
    assert sum(deleted) == 7 + 7 + 7  # usage, the other rows with a part each, and lines
    assert max(deleted) == 2


def test_a_conversation_used_again_meanwhile_is_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(store, "org-1", OLD_S)
    looked = Retention._delete_parts

    def use_then_delete(self: Retention, part: Any, ids: Any) -> int:
        if part.table is content_tables.conversation_items:
            with store.begin() as connection:
                connection.execute(sql.update(content_tables.conversations).values(updated_s=NOW_S))
        return looked(self, part, ids)

    monkeypatch.setattr(Retention, "_delete_parts", use_then_delete)
    Retention(store, 30, clock=lambda: NOW_S).delete_old()
    assert counts(store) == {"conversations": 1}


async def test_an_unexpected_error_does_not_end_retention(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept = Retention(store, 30, clock=lambda: NOW_S, every_s=0.01)
    attempts: queue.Queue[None] = queue.Queue()

    def fail() -> int:
        attempts.put(None)
        raise ValueError("a defect")

    monkeypatch.setattr(kept, "delete_old", fail)
    task = asyncio.create_task(kept.keep_deleting())
    for _ in range(2):
        await asyncio.to_thread(attempts.get, timeout=patience(30))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "expired data could not be deleted" in caplog.text


async def test_without_a_limit_everything_is_kept(store: Store) -> None:
    keep(store, "org-1", OLD_S)
    before = counts(store)
    await Retention(store, 0, clock=lambda: NOW_S).keep_deleting()
    assert Retention(store, 0, clock=lambda: NOW_S).delete_old() == 0
    assert counts(store) == before


async def test_retention_repeats_until_it_is_cancelled(store: Store) -> None:
    task = asyncio.create_task(Retention(store, 30, clock=lambda: NOW_S, every_s=0.01).keep_deleting())
    for name in ("one", "two"):
        Treasury(store, "one").charge([usage(name, started_s=OLD_S)])
        await until(lambda: not counts(store))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_files_batches_responses_and_conversations_are_exported_and_deleted_with_their_tenant(
    store: Store,
) -> None:
    administration = Administration(store, PEPPER)
    ours = administration.create_organisation(SYSTEM, "ours").id
    other = administration.create_organisation(SYSTEM, "other").id
    keep(store, ours, NOW_S)
    keep(store, other, NOW_S)
    exported = administration.export_organisation(SYSTEM, ours)
    for name in ("files", "batches", "responses", "conversations"):
        assert [each["organisation_id"] for each in exported[name]] == [ours]
    with store.read() as connection:
        assert [piece[2] for piece in content_tables.pieces(connection, ours)] == [b"data"]
    administration.delete_organisation(SYSTEM, ours)
    assert set(counts(store).values()) == {1}
    assert administration.export_organisation(SYSTEM, other)["files"]


def test_a_store_error_does_not_quote_what_was_to_be_stored(store: Store) -> None:
    """Ids may be told: PostgreSQL names the key that is there twice."""
    row = filled(content_tables.files, id="file-1", filename="my diary.txt")
    with store.begin() as connection:
        connection.execute(sql.insert(content_tables.files).values(row))
    with pytest.raises(sql.exc.IntegrityError) as raised, store.begin() as connection:
        connection.execute(sql.insert(content_tables.files).values(row))
    assert "my diary" not in str(raised.value)


@pytest.mark.parametrize("ended_s", [OLD_S, None])
def test_history_and_figures_are_deleted_unless_their_rollout_runs(
    store: Store, ended_s: float | None
) -> None:
    """That a release was added is never forgotten: its number is not used again."""
    old: list[tuple[sql.Table, dict[str, object]]] = [
        (schema.audit, {"id": 1, "at_s": OLD_S}),
        (schema.release_events, {"id": 1, "at_s": OLD_S, "what": "add"}),
        (schema.release_events, {"id": 2, "at_s": OLD_S, "what": "load"}),
        (schema.rollouts, {"id": 1, "began_s": OLD_S, "ended_s": ended_s}),
        (schema.arm_figures, {"rollout_id": 1, "at_s": OLD_S}),
        (schema.shadow_figures, {"at_s": OLD_S}),
        (schema.leases, {"expires_s": OLD_S}),
        (schema.audit, {"id": 2}),
        (schema.leases, {"subject": "new"}),
    ]
    with store.begin() as connection:
        for table, values in old:
            connection.execute(sql.insert(table).values(filled(table, **values)))
    for kept in (retention.HISTORY, retention.FIGURES):
        Retention(store, 30, kept, clock=lambda: NOW_S).delete_old()
    with store.read() as connection:
        left = [
            table.name
            for table in {table: None for table, _ in old}
            for _ in connection.execute(sql.select(table))
        ]
    running = ["rollouts", "arm_figures"] if ended_s is None else []
    assert sorted(left) == sorted(["audit", "release_events", "leases", *running])
