"""Batches in the store: made, found, listed, moved on, and held by one router at a time while it must be."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import sqlalchemy as sql

from python_backend.wire.errors import ErrorKind, InflightError
from router.content.batches.model import Batch
from router.content.batches.status import Event, Life, Status, TooLate, after
from router.content.files.model import is_id
from router.store.content_tables import batches

if TYPE_CHECKING:
    from sqlalchemy import Connection, RowMapping

# So many of one organisation may be under way: each takes room in the store.
MAX_OPEN = 100
_LIFE = tuple(each.name for each in fields(Life))
_PLAIN = tuple(each.name for each in fields(Batch) if each.name != "life")
_OPEN = [status.value for status in Status if not status.is_over]


def insert(connection: Connection, batch: Batch) -> None:
    owned = sql.and_(batches.c.organisation_id == batch.organisation_id, batches.c.status.in_(_OPEN))
    count = connection.scalar(sql.select(sql.func.count()).select_from(batches).where(owned))
    if (count or 0) >= MAX_OPEN:
        message = f"this organisation has {MAX_OPEN} batches that have not ended; wait for one, or cancel one"
        raise InflightError(ErrorKind.RATE_LIMITED, message)
    values = {name: getattr(batch, name) for name in _PLAIN}
    connection.execute(sql.insert(batches).values(**values, **_values_of(batch.life)))


def find(connection: Connection, organisation_id: str, batch_id: str) -> Batch:
    if not is_id(batch_id):
        raise InflightError(ErrorKind.NOT_FOUND, "No batch found: this is not the id of one", "batch_id")
    wanted = sql.select(batches).where(batches.c.organisation_id == organisation_id, batches.c.id == batch_id)
    row = connection.execute(wanted).mappings().one_or_none()
    if row is None:
        raise InflightError(ErrorKind.NOT_FOUND, f"No batch found with id '{batch_id}'.", "batch_id")
    return _batch_of(row)


def page(connection: Connection, organisation_id: str, limit: int, after_id: str | None) -> list[Batch]:
    """The newest first."""
    wanted = sql.select(batches).where(batches.c.organisation_id == organisation_id)
    if after_id is not None:
        last = find(connection, organisation_id, after_id)
        mark = sql.tuple_(sql.literal(last.life.created_s), sql.literal(last.id))
        wanted = wanted.where(sql.tuple_(batches.c.created_s, batches.c.id) < mark)
    ordered = wanted.order_by(batches.c.created_s.desc(), batches.c.id.desc()).limit(limit)
    return [_batch_of(row) for row in connection.execute(ordered).mappings()]


def all_open(connection: Connection) -> list[Batch]:
    """Of every organisation, the oldest first."""
    wanted = (
        sql.select(batches).where(batches.c.status.in_(_OPEN)).order_by(batches.c.created_s, batches.c.id)
    )
    return [_batch_of(row) for row in connection.execute(wanted).mappings()]


def cancel(connection: Connection, organisation_id: str, batch_id: str, now_s: float) -> Batch:
    find(connection, organisation_id, batch_id)
    try:
        batch = advance(connection, batch_id, Event.CANCEL_ASKED, now_s)
    except TooLate as status:
        message = f"{batch_id} is {status}: only a batch that is validating or in_progress can be cancelled"
        raise InflightError(ErrorKind.CONFLICT, message, "batch_id") from None
    return find(connection, organisation_id, batch_id) if batch is None else batch


def advance(connection: Connection, batch_id: str, event: Event, now_s: float, **values: Any) -> Batch | None:
    """Moves a batch on, and says what it is now; None when it is gone. Raises TooLate."""
    wanted = sql.select(batches).where(batches.c.id == batch_id).with_for_update()
    row = connection.execute(wanted).mappings().one_or_none()
    if row is None:
        return None
    life = after(_batch_of(row).life, event, now_s)
    # Whoever worked on the last stage does not hold the next one.
    values = {**values, **_values_of(life), "worker": None, "lease_s": None}
    changed = sql.update(batches).where(batches.c.id == batch_id).values(values).returning(*batches.c)
    return _batch_of(connection.execute(changed).mappings().one())


def hold(connection: Connection, batch: Batch, worker: str, now_s: float, lease_s: float) -> bool:
    """Takes or keeps a stage of a batch for one router; False when another has it, or it is over."""
    is_free = batches.c.worker.is_(None) | (batches.c.worker == worker) | (batches.c.lease_s < now_s)
    held = (
        sql.update(batches)
        .where(batches.c.id == batch.id, batches.c.status == batch.status.value, is_free)
        .values(worker=worker, lease_s=now_s + lease_s)
    )
    return connection.execute(held).rowcount == 1


def _values_of(life: Life) -> dict[str, Any]:
    return {name: getattr(life, name) for name in _LIFE} | {"status": life.status.value}


def _batch_of(row: RowMapping) -> Batch:
    life = Life(**{name: row[name] for name in _LIFE if name != "status"}, status=Status(row["status"]))
    return Batch(life=life, **{name: row[name] for name in _PLAIN})
