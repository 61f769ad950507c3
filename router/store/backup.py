"""A store as one file, and back: the same file for SQLite and PostgreSQL, readable by later versions.

Gzipped lines of JSON: a head, then for each table its name and columns, and its rows as lists; at last its
signature. All of it is of one moment, whatever is written meanwhile. What routers that run hold at this
moment is not in it.
"""

from __future__ import annotations

import base64
import gzip
import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

import sqlalchemy as sql
from sqlalchemy import Connection, Table

from router.store import content_tables, migrate
from router.store.backup_signature import Signature, SignatureError, SignedContent, Signer
from router.store.database import CHANGES, FINGERPRINT, PepperError, Store, read_counters
from router.store.private_directory import make_private
from router.store.schema import METADATA, control, counters, facts, leases, organisations, prices

log = logging.getLogger(__name__)
FORMAT = 1
_ROWS_AT_ONCE = 200
_BYTES = "base64"
# Of routers that run: theirs stay, and those of the backup's moment are over.
_MOMENTARY = frozenset({leases.name, control.name, "alembic_version"})
_UNSIGNED = (
    "{file} is not signed, so nobody can tell whether it was changed since it was made. Backups of 0.8.0 and "
    "before are not; a later one has lost its end. If nobody else could write into it, --unsigned restores it"
)
assert content_tables.files.name in METADATA.tables  # its tables are part of the metadata once it is imported


class BackupError(Exception):
    """It cannot be made or restored; the message says why, and what can be done."""


@dataclass(frozen=True, slots=True)
class Summary:
    schema: str
    rows: int
    # None in backups of 0.8.0 and before.
    made_s: float | None = None


def back_up(store: Store, file: Path, signer: Signer) -> Summary:
    """Readable by its owner alone; it is there whole or not at all. The store may have an older schema."""
    partial = file.with_name(f".{file.name}.partial")
    rows = 0
    try:
        with store.read() as connection, _writing(partial, signer) as lines:
            schema, newest = migrate.pending(connection)
            if schema is None:
                raise BackupError("the store is empty: there is nothing to back up")
            pepper = connection.scalar(sql.select(facts.c.value).where(facts.c.name == FINGERPRINT))
            if pepper not in (None, signer.fingerprint):
                raise PepperError(
                    "the keys in this store were created with another pepper, which signs its backups too: "
                    "use the pepper file of the installation that created them"
                )
            made_s = time.time()
            _write(lines, {"format": FORMAT, "schema": schema, "pepper": pepper, "made_s": made_s})
            for table in _tables(connection, METADATA if schema == newest else None):
                _write(lines, {"table": table.name, "columns": [column.name for column in table.columns]})
                for row in _rows(connection, table):
                    _write(lines, [_encoded(value) for value in row])
                    rows += 1
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    return Summary(schema, rows, made_s)


def back_up_before_migration(store: Store, directory: Path, signer: Signer) -> Path | None:
    """Where a router is about to change the schema of an older version: whoever goes back needs it."""
    with store.read() as connection:
        present, newest = migrate.pending(connection)
    if present in (None, newest):
        return None
    file = directory / f"schema-{present}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.backup"
    try:
        make_private(directory)
        made = back_up(store, file, signer)
    except OSError as error:
        raise migrate.SchemaError(
            f"the store has schema {present} and could not be backed up before its migration: {error}"
        ) from error
    log.warning(
        "the store is migrated from schema %s to %s; a backup of its %d rows is in %s",
        present,
        newest,
        made.rows,
        file,
    )
    return file


def _tables(connection: Connection, known: sql.MetaData | None) -> list[Table]:
    """As they are in the store, unless it is known how they are."""
    if known is None:
        known = sql.MetaData()
        known.reflect(connection)
    return [table for table in known.sorted_tables if table.name not in _MOMENTARY]


def restore(
    store: Store, file: Path, signer: Signer, now_s: float, *, replace: bool = False, unsigned: bool = False
) -> Summary:
    """Into an empty store, or with `replace` in place of what is there; all of it or nothing.

    Routers that run meanwhile go on, and have read everything anew within a second. A file that was changed
    after it was signed is refused, and one that nobody signed too, unless `unsigned` lets it in.
    """
    with _reading(file, signer, unsigned) as lines:
        head = _head(lines, file)
        _check_pepper(head["pepper"], signer)
        schema = str(head["schema"])
        if schema not in migrate.revisions():
            newest = migrate.revisions()[-1]
            raise BackupError(
                f"a newer version wrote it: it has schema {schema}, and this one knows {newest}"
            )
        if _is_empty(store):
            migrate.upgrade(store.engine, schema)
        elif not replace:
            raise BackupError("the store is not empty: --replace replaces its content with the backup")
        with store.begin() as connection:
            present, _ = migrate.pending(connection)
            if present != schema:
                raise BackupError(
                    f"the backup has schema {schema} and the store {present}: restore it into an empty "
                    "store, which is then migrated"
                )
            readers = _Readers(connection)
            rows = _fill(connection, lines)
            readers.tell(connection, now_s)
        migrate.upgrade(store.engine)
    made_s = head.get("made_s")
    return Summary(schema, rows, made_s if isinstance(made_s, float) else None)


def _check_pepper(fingerprint: str | None, signer: Signer) -> None:
    if fingerprint not in (None, signer.fingerprint):
        raise PepperError(
            "the keys in this backup were created with another pepper: use the pepper file of that time"
        )


def _fill(connection: Connection, lines: Iterator[Any]) -> int:
    """The tables as they are in this schema, which need not be the newest."""
    own = _tables(connection, None)
    by_name = {table.name: table for table in own}
    for table in reversed(own):
        connection.execute(sql.delete(table))
    rows = 0
    for head, some in _batches(lines):
        columns = head["columns"]
        values = [dict(zip(columns, map(_decoded, row), strict=True)) for row in some]
        connection.execute(sql.insert(by_name[head["table"]]), values)
        rows += len(values)
    _continue_numbers(connection, own)
    return rows


def _batches(lines: Iterator[Any]) -> Iterator[tuple[dict[str, Any], list[list[Any]]]]:
    """Rows of one table at a time, with the line that names it."""
    head: dict[str, Any] = {}
    rows: list[list[Any]] = []
    for line in lines:
        if isinstance(line, list):
            rows.append(line)
        if rows and (isinstance(line, dict) or len(rows) >= _ROWS_AT_ONCE):
            yield head, rows
            rows = []
        if isinstance(line, dict):
            head = line
    if rows:
        yield head, rows


def _continue_numbers(connection: Connection, tables: Sequence[Table]) -> None:
    """PostgreSQL counts rows beside the table; SQLite looks into it."""
    if connection.dialect.name != "postgresql":
        return
    for table in tables:
        for column in table.primary_key:
            sequence = connection.scalar(sql.select(sql.func.pg_get_serial_sequence(table.name, column.name)))
            highest = connection.scalar(sql.select(sql.func.max(column))) if sequence else None
            if highest is not None:
                connection.execute(sql.select(sql.func.setval(sequence, highest)))


class _Readers:
    """Routers that run meanwhile read only what is newer than what they know: after this, everything."""

    def __init__(self, connection: Connection) -> None:
        self._counters = read_counters(connection)
        self._organisations = connection.execute(sql.select(organisations)).mappings().all()

    def tell(self, connection: Connection, now_s: float) -> None:
        restored = read_counters(connection)
        for name in self._counters.keys() | restored.keys():
            value = 1 + max(self._counters.get(name, 0), restored.get(name, 0))
            connection.execute(sql.delete(counters).where(counters.c.name == name))
            connection.execute(sql.insert(counters).values(name=name, value=value))
        change = read_counters(connection).get(CHANGES, 0)
        known = set(connection.scalars(sql.select(organisations.c.id)))
        for row in self._organisations:
            if row["id"] not in known:  # made since the backup: its keys are to be forgotten
                gone = {**row, "name": None, "deleted_s": now_s}
                connection.execute(sql.insert(organisations).values(gone))
        for table in (organisations, prices):
            connection.execute(sql.update(table).values(version=change))


def _rows(connection: Connection, table: Table) -> Iterator[Sequence[Any]]:
    yield from connection.execution_options(yield_per=_ROWS_AT_ONCE).execute(sql.select(table))


def _is_empty(store: Store) -> bool:
    with store.read() as connection:
        return not sql.inspect(connection).has_table(organisations.name)


def _head(lines: Iterator[Any], file: Path) -> dict[str, Any]:
    head = next(lines, None)
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise BackupError(f"{file} is not a backup that this version can read")
    return head


def _encoded(value: Any) -> Any:
    return {_BYTES: base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _decoded(value: Any) -> Any:
    return base64.b64decode(value[_BYTES]) if isinstance(value, dict) else value


def _write(lines: IO[str], value: Any) -> None:
    lines.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


@contextmanager
def _writing(file: Path, signer: Signer) -> Iterator[IO[str]]:
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w+b") as raw:
        with gzip.open(raw, "wt", encoding="utf-8") as lines:
            yield lines
        signer.sign(raw)
        raw.flush()
        os.fsync(raw.fileno())


@contextmanager
def _reading(file: Path, signer: Signer, unsigned: bool) -> Iterator[Iterator[Any]]:
    """Lines of a file that was found to be as it was signed.

    It is checked again while it is read, in case somebody writes into it: after the last line comes an error
    then, before anything is committed. Hence no buffer, which would hold what was there before.
    """

    def parsed(lines: IO[str]) -> Iterator[Any]:
        try:
            for line in lines:
                yield json.loads(line)
        except (OSError, EOFError, ValueError) as error:
            raise BackupError(f"{file} is damaged or not a backup: {error}") from error

    with file.open("rb", buffering=0) as raw:
        source: SignedContent | BinaryIO = raw
        try:
            if signature := Signature.of(raw):
                _check_pepper(signature.fingerprint, signer)
                signer.content(raw, signature).check()
                source = signer.content(raw, signature)
            elif not unsigned:
                raise BackupError(_UNSIGNED.format(file=file))
            raw.seek(0)
            with gzip.open(source, "rt", encoding="utf-8") as lines:
                yield parsed(lines)
        except SignatureError:
            raise BackupError(
                f"{file} was changed or damaged after it was made: its signature belongs to other content. "
                "Nothing was restored; use another copy"
            ) from None
