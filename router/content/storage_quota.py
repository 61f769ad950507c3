"""How many bytes an organisation keeps here, in files and in what was said, and how many it may."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import sqlalchemy as sql
from sqlalchemy import Connection

from python_backend.wire.errors import ErrorKind, InflightError
from router.store.content_tables import chat_completions, conversations, files, responses

# What a row takes beside its texts: many small ones fill a disk too.
ROW_BYTES = 256
# How long a sum may be added to before all rows are looked at again: other routers store too.
_FRESH_S = 10.0
# Whoever has no room left may delete something, and try again; the rows are not summed up more often.
_FULL_S = 1.0


def stored_bytes(connection: Connection, organisation_id: str) -> int:
    """As it is now, whoever wrote it."""
    total = 0
    for each in (files, conversations, responses, chat_completions):
        size = sql.select(sql.func.sum(each.c.size_bytes)).where(each.c.organisation_id == organisation_id)
        total += int(connection.scalar(size) or 0)
    return total


def check_room(connection: Connection, organisation_id: str, size_bytes: int, most_bytes: int) -> int:
    """What is held already; raises TOO_LARGE where so many more do not fit.

    The sum holds to the end of the transaction: two that write at once never share the last of a quota.
    """
    if connection.dialect.name == "postgresql":  # SQLite has one writer anyway
        connection.execute(sql.select(sql.func.pg_advisory_xact_lock(sql.func.hashtext(organisation_id))))
    held = stored_bytes(connection, organisation_id)
    if held + size_bytes > most_bytes:
        raise no_room(held, size_bytes, most_bytes)
    return held


def no_room(held: int, size_bytes: int, most_bytes: int) -> InflightError:
    return InflightError(
        ErrorKind.TOO_LARGE,
        f"the files, conversations and responses of this organisation take {held} of its {most_bytes} "
        f"bytes of storage, and this one needs {size_bytes}: delete some of them first",
    )


class StorageQuota:
    """For small writes, many a second: remembers what it has summed up and adds what it let through since."""

    def __init__(self, most_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_bytes = most_bytes
        self._clock = clock
        self._held: dict[str, tuple[int, float]] = {}
        self._lock = threading.Lock()

    def take(self, connection: Connection, organisation_id: str, size_bytes: int) -> None:
        """Within the transaction that writes them, on any thread; raises TOO_LARGE."""
        now_s = self._clock()
        with self._lock:
            held, at_s = self._held.get(organisation_id, (0, -_FRESH_S))
        is_full = held + size_bytes > self._most_bytes
        if now_s - at_s >= (_FULL_S if is_full else _FRESH_S):
            held, at_s = stored_bytes(connection, organisation_id), now_s
            is_full = held + size_bytes > self._most_bytes
        with self._lock:
            self._held[organisation_id] = (held if is_full else held + size_bytes, at_s)
        if is_full:
            raise no_room(held, size_bytes, self._most_bytes)

    def check(self, organisation_id: str, size_bytes: int) -> None:
        """Before work whose result is to be stored: refuses where it is known that there is no room."""
        held, at_s = self._held.get(organisation_id, (0, -_FRESH_S))
        if held + size_bytes > self._most_bytes and self._clock() - at_s < _FULL_S:
            raise no_room(held, size_bytes, self._most_bytes)
