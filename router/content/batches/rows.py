"""Batches: what one is, how it is shown, and its row in the store."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import msgspec
import sqlalchemy as sql
from sqlalchemy import Connection, RowMapping

from python_backend.wire.errors import ErrorKind, InflightError
from router.content.batches.decisions import Event, Life, Status, TooLate, after
from router.content.files.model import is_id
from router.content.lookup import is_there, next_rows
from router.core.origin import random_hex
from router.store.content_tables import batches

WINDOW = "24h"
WINDOW_S = 86_400
EXPIRED = ("batch_expired", "This request could not be executed before the completion window expired.")
CANCELLED = ("batch_cancelled", "This request was not executed, because the batch was cancelled.")
_TIMES = tuple(each.name for each in fields(Life) if each.name.endswith("_s"))
# So many of one organisation may be under way: each takes room in the store.
MAX_OPEN = 100


@dataclass(frozen=True, slots=True)
class Batch:
    id: str
    organisation_id: str
    key_id: str
    endpoint: str
    input_file_id: str
    life: Life
    metadata: str = "null"
    output_lifetime_s: int | None = None
    model: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: str = "[]"
    total_count: int = 0
    completed_count: int = 0
    failed_count: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    worker: str | None = None
    lease_s: float | None = None

    @property
    def status(self) -> Status:
        return self.life.status

    @property
    def unanswered(self) -> int:
        return self.total_count - self.completed_count - self.failed_count

    def render(self) -> dict[str, Any]:
        """Files are named once they are whole."""
        errors = msgspec.json.decode(self.errors)
        is_over = self.status.is_over
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model,
            "errors": {"object": "list", "data": errors} if errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": WINDOW,
            "status": self.status.value,
            "output_file_id": self.output_file_id if is_over else None,
            "error_file_id": self.error_file_id if is_over else None,
            **self._times(),
            "request_counts": {
                "total": self.total_count,
                "completed": self.completed_count,
                "failed": self.failed_count,
            },
            "usage": self._usage(),
            "metadata": msgspec.json.decode(self.metadata),
        }

    def _times(self) -> dict[str, int | None]:
        times = {name: getattr(self.life, name) for name in _TIMES}
        if self.status is not Status.EXPIRED:
            times["expired_s"] = None  # its time is up, but it is not over
        return {f"{name[:-2]}_at": None if at_s is None else int(at_s) for name, at_s in times.items()}

    def _usage(self) -> dict[str, Any]:
        return {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens},
            "output_tokens": self.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


_LIFE = tuple(each.name for each in fields(Life))
_PLAIN = tuple(each.name for each in fields(Batch) if each.name != "life")
_OPEN = [status.value for status in Status if not status.is_over]
_ALL_OPEN = sql.select(batches).where(batches.c.status.in_(_OPEN)).order_by(batches.c.created_s, batches.c.id)


def new_batch_id() -> str:
    return f"batch_{random_hex(12)}"


def answered_line(batch_id: str, number: int, custom_id: str, response: Response) -> str:
    """One line of an output file; the body is carried over as it was answered."""
    shown = {"status_code": response.status, "request_id": response.request_id, "body": response.body}
    return _line(batch_id, number, custom_id, shown, None)


def dropped_line(batch_id: str, number: int, custom_id: str, why: tuple[str, str]) -> str:
    return _line(batch_id, number, custom_id, None, {"code": why[0], "message": why[1]})


class Response(msgspec.Struct, frozen=True):
    status: int
    request_id: str
    body: msgspec.Raw


def _line(batch_id: str, number: int, custom_id: str, response: Any, error: Any) -> str:
    line_id = f"batch_req_{batch_id.removeprefix('batch_')}_{number}"
    shown = {"id": line_id, "custom_id": custom_id, "response": response, "error": error}
    return msgspec.json.encode(shown).decode()


def insert(connection: Connection, batch: Batch) -> None:
    if is_there(connection, batches, batch.id):
        return
    owned = sql.and_(batches.c.organisation_id == batch.organisation_id, batches.c.status.in_(_OPEN))
    count = connection.scalar(sql.select(sql.func.count()).select_from(batches).where(owned))
    if (count or 0) >= MAX_OPEN:
        message = f"this organisation has {MAX_OPEN} unfinished batches; wait for one to end, or cancel one"
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
    last = None if after_id is None else find(connection, organisation_id, after_id)
    mark = () if last is None else (last.life.created_s, last.id)
    ordered = next_rows(wanted, (batches.c.created_s, batches.c.id), mark, ascending=False, limit=limit)
    return [_batch_of(row) for row in connection.execute(ordered).mappings()]


def all_open(connection: Connection) -> list[Batch]:
    """Of every organisation, the oldest first."""
    return [_batch_of(row) for row in connection.execute(_ALL_OPEN).mappings()]


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
