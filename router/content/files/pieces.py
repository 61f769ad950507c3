"""Moves content into the store and out of it, never more than a few pieces at once."""

from __future__ import annotations

import hashlib
import logging
import time
from functools import partial
from typing import IO, TYPE_CHECKING

import sqlalchemy as sql

from python_backend.wire.errors import ErrorKind, InflightError
from router.content.files import rows
from router.content.files.model import PIECE_BYTES, StoredFile

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sqlalchemy import Connection

    from router.store.access import StoreAccess

log = logging.getLogger(__name__)

# Short enough for other writers to get in between.
_PIECES_A_TRANSACTION = 4


async def keep(store: StoreAccess, file: StoredFile, source: IO[bytes], most_bytes: int) -> None:
    """Copies `file.size_bytes` from where `source` stands; there is all of a file in the end, or nothing."""
    await store.write(partial(rows.begin, file=file, most_bytes=most_bytes))
    try:
        digest = hashlib.sha256()

        def add(connection: Connection, first: int) -> None:
            for number in range(first, min(first + _PIECES_A_TRANSACTION, file.piece_count)):
                data = source.read(min(PIECE_BYTES, file.size_bytes - number * PIECE_BYTES))
                digest.update(data)
                rows.add_piece(connection, file.id, number, data)

        for first in range(0, file.piece_count, _PIECES_A_TRANSACTION):
            await store.write(partial(add, first=first))
        finished = partial(
            rows.finish, file_id=file.id, size_bytes=file.size_bytes, sha256=digest.hexdigest()
        )
        await store.write(finished)
    except sql.exc.IntegrityError:
        raise rows.gone() from None  # a file that is not whole goes with its organisation alone
    except BaseException:
        await _drop(store, file.id)
        raise


async def _drop(store: StoreAccess, file_id: str) -> None:
    try:
        await store.write(partial(rows.drop, file_id=file_id))
    except InflightError:
        log.warning("%s is not whole and could not be removed; it will be swept up later", file_id)


async def pieces(store: StoreAccess, file: StoredFile) -> AsyncIterator[bytes]:
    for number in range(file.piece_count):
        yield await store.read(partial(rows.read_piece, file_id=file.id, number=number))


async def content(
    store: StoreAccess, organisation_id: str, file_id: str, most_bytes: int
) -> tuple[StoredFile, bytes]:
    """A whole file, for those who need it in memory; refused when it has more than `most_bytes`."""

    def read(connection: Connection) -> tuple[StoredFile, bytes]:
        file = rows.find(connection, organisation_id, file_id, time.time())
        if file.size_bytes > most_bytes:
            message = f"{file_id} has {file.size_bytes} bytes; allowed here: at most {most_bytes}"
            raise InflightError(ErrorKind.TOO_LARGE, message, "file_id")
        return file, rows.read_range(connection, file_id, 0, file.size_bytes) if file.size_bytes else b""

    return await store.read(read)
