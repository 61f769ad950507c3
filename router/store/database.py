"""SQLite in the data directory, or PostgreSQL by URL, behind the same few methods."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sql
from sqlalchemy import Connection, Engine, Table, event

from python_backend.sharing.processor_share import ProcessorShare
from python_backend.wire.errors import ErrorKind, InflightError
from router.core.fair_pool import FairPool
from router.store import migrate
from router.store.repeats import Repeats
from router.store.schema import HOLDS_TEXT, counters, facts

Result = TypeVar("Result")
_BUSY_TIMEOUT_S = 10
_RETRY_S = 0.02
_ERASING_PATIENCE_MS = 50
_LAST_ERASING_S = 2.0
_WAITING_EACH = 1 << 30  # as many as there are requests: what was answered is to be stored
_ROWS_AT_ONCE = 50  # drivers keep the statement of each number of rows
# Without these a server that vanishes from the network is waited for as long as the kernel cares to.
_PATIENCE = {
    "connect_timeout": 3,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
_READS = "only_reads"
CHANGES = "changes"
FINGERPRINT = "pepper_fingerprint"
_COUNTERS = sql.select(counters.c.name, counters.c.value)  # made once: it is read several times a second

# What the store's absence looks like; everything else is a defect and should be loud.
StoreAway = (sql.exc.OperationalError, sql.exc.InterfaceError, sql.exc.TimeoutError)


class PepperError(Exception):
    """The keys in the store were made with another pepper."""


def sqlite_url(path: Path) -> str:
    return sql.URL.create("sqlite", database=str(path)).render_as_string()


class Store:
    """Opened by the thread that uses it; never called from the event loop."""

    def __init__(self, url: str) -> None:
        self.engine = _engine(url)
        if self.is_postgres:
            self._reader = self.engine.execution_options(isolation_level="REPEATABLE READ")
        else:
            self._reader = self.engine.execution_options(**{_READS: True})
        self.repeats = Repeats()
        self._has_deleted = threading.Event()
        if not self.is_postgres:
            event.listen(self.engine, "after_execute", self._note_deletion)
        # Only this one: PostgreSQL's takes a twentieth of a router's start.
        self._insert: Any = import_module(f"sqlalchemy.dialects.{self.engine.dialect.name}").insert

    @property
    def is_postgres(self) -> bool:
        return self.engine.dialect.name == "postgresql"

    def prepare(self, pepper_fingerprint: str) -> None:
        """Brings the schema up to date and makes sure that the keys in it can be verified here."""
        migrate.upgrade(self.engine)
        with self.begin() as connection:
            fact = {"name": FINGERPRINT, "value": pepper_fingerprint}
            connection.execute(self.insert_new(facts).values(fact))
            stored = connection.scalar(sql.select(facts.c.value).where(facts.c.name == FINGERPRINT))
        if stored != pepper_fingerprint:
            raise PepperError(
                "the keys in this store were created with another pepper: give this router the pepper file "
                "of the installation that created them"
            )

    def begin(self) -> AbstractContextManager[Connection]:
        """A transaction that may write: committed at the end of the block, or rolled back whole."""
        return self.engine.begin()

    def read(self) -> AbstractContextManager[Connection]:
        """A transaction that only reads, all of it as of one moment; it waits for no writer."""
        return self._reader.begin()

    def insert_new(self, table: Table) -> Any:
        """An insert that leaves rows alone that are there already."""
        return self._insert(table).on_conflict_do_nothing()

    def insert_rows(
        self,
        connection: Connection,
        table: Table,
        names: Sequence[str],
        rows: Sequence[Sequence[Any]],
        returning: str,
    ) -> Sequence[Any]:
        """The same for many rows at once; answers with one column of those that were not there.

        Written as the driver takes it: SQLAlchemy spends twice the time of the insert on each row.
        """
        row = f"({', '.join(['%s' if self.is_postgres else '?'] * len(names))})"
        new: list[Any] = []
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            some = rows[start : start + _ROWS_AT_ONCE]
            statement = (
                f"INSERT INTO {table.name} ({', '.join(names)}) VALUES {', '.join([row] * len(some))} "
                f"ON CONFLICT DO NOTHING RETURNING {returning}"
            )
            new += connection.exec_driver_sql(statement, tuple(chain.from_iterable(some))).scalars()
        return new

    def insert_or_update(self, table: Table, values: dict[str, Any]) -> Any:
        """An insert of one row that replaces the row with the same primary key."""
        by = [column.name for column in table.primary_key]
        rest = {name: value for name, value in values.items() if name not in by}
        return self._insert(table).values(values).on_conflict_do_update(index_elements=by, set_=rest)

    def next_change(self, connection: Connection) -> int:
        """Numbers a change; locked to the end of the transaction, so that numbers rise as commits do."""
        change = sql.update(counters).where(counters.c.name == CHANGES).values(value=counters.c.value + 1)
        return int(connection.execute(change.returning(counters.c.value)).scalar_one())

    def last_change(self, connection: Connection) -> int:
        return read_counters(connection).get(CHANGES, 0)

    def erase_deleted(self) -> bool:
        """Takes what was deleted out of SQLite's log too; False where somebody is in the way, for now.

        In the database itself it is overwritten (`secure_delete`), but its log keeps the pages as they were.
        """
        if not self._has_deleted.is_set():
            return True
        self._has_deleted.clear()
        connection = self.engine.raw_connection()
        try:
            connection.execute(f"PRAGMA busy_timeout={_ERASING_PATIENCE_MS}")
            is_busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        except sqlite3.OperationalError:
            is_busy = True
        finally:
            connection.execute(f"PRAGMA busy_timeout={_BUSY_TIMEOUT_S * 1000}")
            connection.close()
        if is_busy:
            self._has_deleted.set()
        return not is_busy

    def close(self) -> None:
        deadline_s = time.monotonic() + _LAST_ERASING_S
        while not self.erase_deleted() and time.monotonic() < deadline_s:
            time.sleep(_RETRY_S)
        self.engine.dispose()

    def _note_deletion(self, _connection: Connection, statement: Any, *_: Any) -> None:
        if isinstance(statement, sql.Delete) and getattr(statement.table, "info", {}).get(HOLDS_TEXT):
            self._has_deleted.set()


def read_counters(connection: Connection) -> dict[str, int]:
    """By name, the numbers that rise with every change of what is named so."""
    return {row.name: int(row.value) for row in connection.execute(_COUNTERS)}


class StoreAccess:
    """The store for code on the event loop: each transaction runs in a thread, by the turn of its tenant.

    Keys, limits and usage have a thread of their own, which nothing here can block. The router's own
    transactions are those of a tenant without a name.
    """

    def __init__(self, store: Store, threads: int = 4, share: ProcessorShare | None = None) -> None:
        self._store = store
        self._pool = FairPool("the store", threads, _WAITING_EACH, share)
        self._counting: asyncio.Task[dict[str, int]] | None = None

    @property
    def store(self) -> Store:
        return self._store

    async def read(self, act: Callable[[Connection], Result], tenant: str = "") -> Result:
        """All that `act` reads is of one moment."""
        return await self._run(self._store.read, act, tenant)

    async def write(self, act: Callable[[Connection], Result], tenant: str = "") -> Result:
        """Committed when it returns, or nothing has changed."""
        return await self._run(self._store.begin, act, tenant)

    async def last_change(self, counter: str) -> int:
        """Those who ask while an answer is on its way share it."""
        if self._counting is None or self._counting.done():
            self._counting = asyncio.get_running_loop().create_task(self.read(read_counters))
        return (await asyncio.shield(self._counting)).get(counter, 0)

    def close(self) -> None:
        self._pool.close(wait=True)

    async def _run(
        self,
        transaction: Callable[[], AbstractContextManager[Connection]],
        act: Callable[[Connection], Result],
        tenant: str,
    ) -> Result:
        def in_transaction() -> Result:
            with transaction() as connection:
                return act(connection)

        try:
            return await self._pool.run(tenant, in_transaction)
        except StoreAway as error:
            raise InflightError(
                ErrorKind.OVERLOADED, "the store of this server cannot be reached at the moment"
            ) from error


def _engine(url: str) -> Engine:
    parsed = sql.make_url(url)
    if parsed.get_backend_name() == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
        return sql.create_engine(parsed, connect_args=_PATIENCE, pool_pre_ping=True, hide_parameters=True)
    if parsed.get_backend_name() != "sqlite":
        raise ValueError(f"store: {parsed.get_backend_name()} is not supported; use sqlite or postgresql")
    engine = sql.create_engine(parsed, connect_args={"timeout": _BUSY_TIMEOUT_S}, hide_parameters=True)
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    # The driver's own idea of when a transaction begins would let two writers read before either writes.
    connection.isolation_level = None
    _switch_to_wal(connection)
    for pragma in ("synchronous=FULL", "foreign_keys=ON", "secure_delete=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _switch_to_wal(connection: Any) -> None:
    """SQLite's own patience does not cover this: where another connection is writing it fails at once."""
    deadline_s = time.monotonic() + _BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() >= deadline_s:
                raise
            time.sleep(_RETRY_S)


def _begin_sqlite(connection: Connection) -> None:
    only_reads = connection.get_execution_options().get(_READS, False)
    connection.exec_driver_sql("BEGIN" if only_reads else "BEGIN IMMEDIATE")
