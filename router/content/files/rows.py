"""Files in the store: one row each, and their content in pieces that any router can serve."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import IO

import sqlalchemy as sql
from sqlalchemy import Connection, RowMapping

from python_backend.wire.errors import ErrorKind, InflightError
from router.content.files.model import PIECE_BYTES, StoredFile, is_id
from router.content.lookup import next_rows
from router.content.storage_quota import check_room
from router.store.content_tables import batches, file_pieces, files
from router.store.database import StoreAccess
from router.tenants.records import deleted_among

log = logging.getLogger(__name__)

# Older than this, an upload that is not whole was left behind by a router that died.
_STALE_S = 6 * 3600
# Short enough for other writers to get in between.
_PIECES_A_TRANSACTION = 4
_ENDED = ("failed", "completed", "expired", "cancelled")


def begin(connection: Connection, file: StoredFile, most_bytes: int | None = None) -> None:
    """Takes up room for a file; its pieces follow. Two uploads never share the last of a quota."""
    if most_bytes is not None:
        if deleted_among(connection, {file.organisation_id}):
            raise gone()
        check_room(connection, file.organisation_id, file.size_bytes, most_bytes)
    values = {name: getattr(file, name) for name in StoredFile.__slots__}
    connection.execute(sql.insert(files).values(**values, is_whole=False))


def gone() -> InflightError:
    return InflightError(ErrorKind.NOT_FOUND, "the organisation of this key was deleted")


def add_piece(connection: Connection, file_id: str, number: int, data: bytes) -> None:
    """Every piece but the last has `PIECE_BYTES`."""
    connection.execute(sql.insert(file_pieces).values(file_id=file_id, number=number, data=data))


def finish(connection: Connection, file_id: str, size_bytes: int, sha256: str) -> None:
    values = {"size_bytes": size_bytes, "sha256": sha256, "is_whole": True}
    connection.execute(sql.update(files).where(files.c.id == file_id).values(values))


def find(connection: Connection, organisation_id: str, file_id: str, now_s: float) -> StoredFile:
    if not is_id(file_id):
        raise InflightError(ErrorKind.NOT_FOUND, "No such File object: this is not the id of a file", "id")
    wanted = sql.select(files).where(_visible(organisation_id, now_s), files.c.id == file_id)
    row = connection.execute(wanted).mappings().one_or_none()
    if row is None:
        raise InflightError(ErrorKind.NOT_FOUND, f"No such File object: {file_id}", "id")
    return _file_of(row)


def page(
    connection: Connection,
    organisation_id: str,
    now_s: float,
    *,
    limit: int,
    after: str | None = None,
    ascending: bool = False,
    purpose: str | None = None,
) -> list[StoredFile]:
    wanted = sql.select(files).where(_visible(organisation_id, now_s))
    if purpose is not None:
        wanted = wanted.where(files.c.purpose == purpose)
    last = None if after is None else find(connection, organisation_id, after, now_s)
    mark = () if last is None else (last.created_s, last.id)
    ordered = next_rows(wanted, (files.c.created_s, files.c.id), mark, ascending, limit)
    return [_file_of(row) for row in connection.execute(ordered).mappings()]


def read_piece(connection: Connection, file_id: str, number: int) -> bytes:
    """Of a file that is gone meanwhile there are no pieces: NOT_FOUND."""
    wanted = sql.select(file_pieces.c.data).where(
        file_pieces.c.file_id == file_id, file_pieces.c.number == number
    )
    data = connection.scalar(wanted)
    if data is None:
        raise InflightError(ErrorKind.NOT_FOUND, f"the content of {file_id} is gone", "id")
    return bytes(data)


def read_range(connection: Connection, file_id: str, start_bytes: int, size_bytes: int) -> bytes:
    """Takes from the store only what is asked for; less where the file has no more."""
    parts = []
    for number in range(start_bytes // PIECE_BYTES, -(-(start_bytes + size_bytes) // PIECE_BYTES)):
        begin_bytes = max(start_bytes - number * PIECE_BYTES, 0)
        end_bytes = min(start_bytes + size_bytes - number * PIECE_BYTES, PIECE_BYTES)
        cut = sql.func.substr(file_pieces.c.data, begin_bytes + 1, end_bytes - begin_bytes)
        wanted = sql.select(cut).where(file_pieces.c.file_id == file_id, file_pieces.c.number == number)
        parts.append(bytes(connection.scalar(wanted) or b""))
    return b"".join(parts)


def delete(connection: Connection, organisation_id: str, file_id: str, now_s: float) -> None:
    """Refused while a batch still reads it."""
    find(connection, organisation_id, file_id, now_s)
    reads = sql.select(batches.c.id).where(
        batches.c.input_file_id == file_id,
        batches.c.organisation_id == organisation_id,
        batches.c.status.not_in(_ENDED),
    )
    batch_id = connection.scalar(reads.limit(1))
    if batch_id is not None:
        message = f"{file_id} is the input of {batch_id}, which has not ended: cancel it first"
        raise InflightError(ErrorKind.CONFLICT, message, "id")
    drop(connection, file_id)


def drop(connection: Connection, file_id: str) -> None:
    connection.execute(sql.delete(file_pieces).where(file_pieces.c.file_id == file_id))
    connection.execute(sql.delete(files).where(files.c.id == file_id))


def sweep(connection: Connection, now_s: float, most: int = 20) -> int:
    """Removes some files that have expired or were never completed; returns how many."""
    in_use = sql.select(batches.c.input_file_id).where(batches.c.status.not_in(_ENDED))
    left = sql.not_(files.c.is_whole) & (files.c.created_s < now_s - _STALE_S)
    over = (files.c.expires_s <= now_s) & files.c.id.not_in(in_use)
    wanted = sql.select(files.c.id).where(left | over).limit(most)
    gone = connection.execute(wanted).scalars().all()
    for file_id in gone:
        drop(connection, file_id)
    return len(gone)


def _visible(organisation_id: str, now_s: float) -> sql.ColumnElement[bool]:
    lives = files.c.expires_s.is_(None) | (files.c.expires_s > now_s)
    return sql.and_(files.c.organisation_id == organisation_id, files.c.is_whole, lives)


def _file_of(row: RowMapping) -> StoredFile:
    return StoredFile(**{name: row[name] for name in StoredFile.__slots__})


async def keep(store: StoreAccess, file: StoredFile, source: IO[bytes], most_bytes: int) -> None:
    """Copies `file.size_bytes` from where `source` stands; there is all of a file in the end, or nothing."""
    tenant = file.organisation_id
    await store.write(partial(begin, file=file, most_bytes=most_bytes), tenant)
    try:
        digest = hashlib.sha256()

        def add(connection: Connection, first: int) -> None:
            for number in range(first, min(first + _PIECES_A_TRANSACTION, file.piece_count)):
                data = source.read(min(PIECE_BYTES, file.size_bytes - number * PIECE_BYTES))
                digest.update(data)
                add_piece(connection, file.id, number, data)

        for first in range(0, file.piece_count, _PIECES_A_TRANSACTION):
            await store.write(partial(add, first=first), tenant)
        sha256 = digest.hexdigest()
        await store.write(lambda connection: finish(connection, file.id, file.size_bytes, sha256), tenant)
    except sql.exc.IntegrityError:
        raise gone() from None  # a file that is not whole goes with its organisation alone
    except BaseException:
        await _drop(store, file.id)
        raise


async def _drop(store: StoreAccess, file_id: str) -> None:
    try:
        await store.write(partial(drop, file_id=file_id))
    except InflightError:
        log.warning("%s is incomplete and could not be removed; the next clean-up removes it", file_id)


async def pieces(store: StoreAccess, file: StoredFile) -> AsyncIterator[bytes]:
    for number in range(file.piece_count):
        yield await store.read(partial(read_piece, file_id=file.id, number=number), file.organisation_id)


async def content(
    store: StoreAccess, organisation_id: str, file_id: str, most_bytes: int
) -> tuple[StoredFile, bytes]:
    """A whole file, for those who need it in memory; refused when it has more than `most_bytes`."""

    def read(connection: Connection) -> tuple[StoredFile, bytes]:
        file = find(connection, organisation_id, file_id, time.time())
        if file.size_bytes > most_bytes:
            message = f"{file_id} has {file.size_bytes} bytes; allowed: at most {most_bytes}"
            raise InflightError(ErrorKind.TOO_LARGE, message, "file_id")
        return file, read_range(connection, file_id, 0, file.size_bytes) if file.size_bytes else b""

    return await store.read(read, organisation_id)
