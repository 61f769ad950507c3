"""Deletes what is older than the operator wants it kept, a few rows at a time."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sql
from sqlalchemy import Column, ColumnElement, Table

from router.store.content_tables import (
    batch_lines,
    batches,
    chat_completions,
    conversation_items,
    conversations,
    file_pieces,
    files,
    responses,
)
from router.store.database import Store, StoreAway
from router.store.schema import (
    RELEASE_ADDED,
    arm_figures,
    audit,
    leases,
    release_events,
    rollouts,
    shadow_figures,
    usage,
)

log = logging.getLogger(__name__)

_DAY_S = 86_400.0
_EVERY_S = 3_600.0
# Few enough that a writer who waits meanwhile does not notice.
_ROWS_AT_ONCE = 200
_PAUSE_S = 0.01
_OVER = ("completed", "failed", "expired", "cancelled")


class Kept(NamedTuple):
    """A table with a time limit: rows whose time is past go, and first those that belong to them.

    `parts` are columns of other tables that hold the primary key of this one; `only` is which rows may go.
    """

    table: Table
    time: Column[float]
    parts: tuple[Column[Any], ...] = ()
    only: ColumnElement[bool] = sql.true()


_RUNNING_INPUTS = sql.select(batches.c.input_file_id).where(batches.c.status.not_in(_OVER))
KEPT = (
    Kept(usage, usage.c.ended_s),
    Kept(responses, responses.c.created_s),
    Kept(chat_completions, chat_completions.c.created_s),
    Kept(conversations, conversations.c.updated_s, (conversation_items.c.conversation_id,)),
    Kept(batches, batches.c.created_s, (batch_lines.c.batch_id,), batches.c.status.in_(_OVER)),
    Kept(files, files.c.created_s, (file_pieces.c.file_id,), files.c.id.not_in(_RUNNING_INPUTS)),
)
# What was done, and by whom. That a release was added stays: its number is never used again.
HISTORY = (
    Kept(audit, audit.c.at_s),
    Kept(release_events, release_events.c.at_s, only=release_events.c.what != RELEASE_ADDED),
    Kept(rollouts, rollouts.c.ended_s, (arm_figures.c.rollout_id,)),
)
# What routers measured or held that have long ended; nobody reads it any more.
FIGURES_DAYS = 90
_RUNNING_ROLLOUTS = sql.select(rollouts.c.id).where(rollouts.c.ended_s.is_(None))
FIGURES = (
    Kept(arm_figures, arm_figures.c.at_s, only=arm_figures.c.rollout_id.not_in(_RUNNING_ROLLOUTS)),
    Kept(shadow_figures, shadow_figures.c.at_s),
    Kept(leases, leases.c.expires_s),
)


class Retention:
    """A task for as long as the router runs; several routers on one store do not disturb each other."""

    def __init__(
        self,
        store: Store,
        days: int,
        kept: Sequence[Kept] = KEPT,
        clock: Callable[[], float] = time.time,
        every_s: float = _EVERY_S,
    ) -> None:
        self._store = store
        self._days = days
        self._kept = kept
        self._clock = clock
        self._every_s = every_s
        self._stopping = threading.Event()

    async def keep_deleting(self) -> None:
        """In threads of its own, so that keys, limits and requests never wait for it; ends when cancelled."""
        try:
            while self._days:
                try:
                    await asyncio.to_thread(self.delete_old)
                except StoreAway as error:
                    log.warning("expired data could not be deleted: %s", type(error).__name__)
                except Exception:  # whatever it was, what is old must go the next time
                    log.exception("expired data could not be deleted")
                await asyncio.sleep(self._every_s)
        finally:
            self._stopping.set()

    def delete_old(self) -> int:
        """Deletes all that is too old; tells how many rows of the tables themselves that were."""
        before_s = self._clock() - self._days * _DAY_S
        deleted = 0
        for kept in self._kept if self._days else ():
            while not self._stopping.wait(_PAUSE_S) and (count := self._delete_some(kept, before_s)):
                deleted += count
        if deleted:
            log.info("deleted %d rows older than %d days", deleted, self._days)
        return deleted

    def _delete_some(self, kept: Kept, before_s: float) -> int:
        """Parts first, in transactions of their own: one row may have a hundred thousand of them."""
        key = next(iter(kept.table.primary_key))
        is_old = sql.and_(kept.time < before_s, kept.only)
        with self._store.read() as connection:
            ids = connection.scalars(sql.select(key).where(is_old).limit(_ROWS_AT_ONCE)).all()
        for part in kept.parts:
            while ids and self._delete_parts(part, ids):
                if self._stopping.wait(_PAUSE_S):
                    return 0
        if ids:
            with self._store.begin() as connection:  # but for what was used again meanwhile
                connection.execute(sql.delete(kept.table).where(key.in_(ids), is_old))
        return len(ids)

    def _delete_parts(self, part: Column[Any], ids: Sequence[Any]) -> int:
        key = tuple(part.table.primary_key)
        some = sql.select(*key).where(part.in_(ids)).limit(_ROWS_AT_ONCE)
        with self._store.begin() as connection:
            return connection.execute(sql.delete(part.table).where(sql.tuple_(*key).in_(some))).rowcount
