"""Files of releases in the store, known by their hashes: for hosts that share nothing but the store.

A file is written a piece at a time, each in a transaction of its own, and is whole when its last piece is
there: whoever was interrupted goes on behind the pieces that it wrote. The same bytes are kept once.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import sqlalchemy as sql

from router.core.manifest import FileMark
from router.store.schema import facts, release_file_pieces, release_files

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from sqlalchemy import Connection

    from router.store.database import Store

PIECE_BYTES = 4 << 20
DEPLOYMENT = "deployment"  # the fact that says what `inflight triton` serves
_BESIDE = "beside "  # facts that say which files lie beside those of a release


def whole_files(connection: Connection) -> set[str]:
    return set(connection.scalars(sql.select(release_files.c.sha256).where(release_files.c.is_whole)))


def put_file(store: Store, path: Path, mark: FileMark, advance: Callable[[int], None]) -> None:
    """`advance` is told how many bytes of it are there. What is at the path must be what the mark says."""
    own, pieces = release_files.c.sha256 == mark.sha256, release_file_pieces.c
    with store.begin() as connection:
        row = {"sha256": mark.sha256, "size_bytes": mark.bytes, "is_whole": False}
        connection.execute(store.insert_new(release_files).values(row))
        there = (
            sql.select(sql.func.count()).select_from(release_file_pieces).where(pieces.sha256 == mark.sha256)
        )
        number = int(connection.scalar(there) or 0)
    digest, read = hashlib.sha256(), 0
    with path.open("rb") as file:
        while data := file.read(PIECE_BYTES):
            digest.update(data)
            if read >= number:
                piece = {"sha256": mark.sha256, "number": read, "data": data}
                with store.begin() as connection:
                    connection.execute(store.insert_new(release_file_pieces).values(piece))
                advance(min((read + 1) * PIECE_BYTES, mark.bytes))
            read += 1
    is_same = digest.hexdigest() == mark.sha256
    with store.begin() as connection:
        if is_same:
            connection.execute(sql.update(release_files).where(own).values(is_whole=True))
        else:
            connection.execute(sql.delete(release_files).where(own))
    if not is_same:
        raise ValueError(f"{path} has changed while it was put into the store")


def read_pieces(store: Store, sha256: str, first: int) -> Iterator[bytes]:
    """From one number on, each read by itself: nothing is held open while a slow disk is written."""
    number, pieces = first, release_file_pieces.c
    while True:
        with store.read() as connection:
            wanted = (pieces.sha256 == sha256) & (pieces.number == number)
            data = connection.scalar(sql.select(pieces.data).where(wanted))
        if data is None:
            return
        yield bytes(data)
        number += 1


def drop_others(connection: Connection, kept: Collection[str]) -> None:
    """All but these; pieces go with their file."""
    connection.execute(sql.delete(release_files).where(release_files.c.sha256.not_in(list(kept))))


def put_beside(store: Store, connection: Connection, release: str, marks: Sequence[FileMark]) -> None:
    value = json.dumps([asdict(mark) for mark in marks])
    connection.execute(store.insert_or_update(facts, {"name": _BESIDE + release, "value": value}))


def find_beside(connection: Connection, release: str) -> list[FileMark]:
    found = connection.scalar(sql.select(facts.c.value).where(facts.c.name == _BESIDE + release))
    return [FileMark(**each) for each in json.loads(found or "[]")]


def forget_beside(connection: Connection, release: str) -> None:
    connection.execute(sql.delete(facts).where(facts.c.name == _BESIDE + release))


def put_deployment(store: Store, connection: Connection, document: str) -> None:
    connection.execute(store.insert_or_update(facts, {"name": DEPLOYMENT, "value": document}))


def find_deployment(connection: Connection) -> str | None:
    found: str | None = connection.scalar(sql.select(facts.c.value).where(facts.c.name == DEPLOYMENT))
    return found
