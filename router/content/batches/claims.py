"""Lines in the store: taken by one router at a time, answered once.

A line is `waiting`, `running` under a lease, or `done`. Only who holds the lease may answer, and the answer
is written in the same transaction as the counts of its batch; so a line that was under way when a router
died is run again, and still answered exactly once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
import sqlalchemy as sql
from sqlalchemy import Connection

from router.content.batches.rows import Batch
from router.content.files.rows import read_range
from router.store.content_tables import batch_lines, batches

WAITING, RUNNING, DONE, DROPPED = "waiting", "running", "done", "dropped"


@dataclass(frozen=True, slots=True)
class Line:
    """A request of a batch, by where it lies in the input file."""

    number: int
    custom_id: str
    start_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to run a line, for as long as it is renewed."""

    batch: Batch
    number: int
    custom_id: str
    attempts: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    claim: Claim
    succeeded: bool
    text: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Returned:
    """A line that must be run again."""

    claim: Claim
    attempts: int


class _Request(msgspec.Struct, frozen=True):
    body: msgspec.Raw


_decoder = msgspec.json.Decoder(_Request)


def add(connection: Connection, batch_id: str, lines: Iterable[Line]) -> None:
    values = [
        {
            "batch_id": batch_id,
            "number": line.number,
            "custom_id": line.custom_id,
            "start_bytes": line.start_bytes,
            "size_bytes": line.size_bytes,
            "state": WAITING,
            "attempts": 0,
        }
        for line in lines
    ]
    if values:
        connection.execute(sql.insert(batch_lines), values)


def remove_all(connection: Connection, batch_id: str) -> None:
    connection.execute(sql.delete(batch_lines).where(batch_lines.c.batch_id == batch_id))


def take(
    connection: Connection, batch: Batch, count: int, worker: str, now_s: float, lease_s: float
) -> list[Claim]:
    """At most so many lines that nobody runs, those that a router has left behind first."""
    lines = batch_lines.c
    lapsed = sql.and_(lines.state == RUNNING, lines.lease_s < now_s)
    found = _select(connection, batch.id, lapsed, count)
    found += _select(connection, batch.id, lines.state == WAITING, count - len(found))
    if not found:
        return []
    mine = sql.and_(lines.batch_id == batch.id, lines.number.in_([row.number for row in found]))
    held = {"state": RUNNING, "worker": worker, "lease_s": now_s + lease_s}
    connection.execute(sql.update(batch_lines).where(mine).values(held))
    bodies = [_body(text) for text in _texts(connection, batch, found)]
    return [
        Claim(batch, row.number, row.custom_id, row.attempts, body)
        for row, body in zip(found, bodies, strict=True)
    ]


def _select(connection: Connection, batch_id: str, which: sql.ColumnElement[bool], count: int) -> list[Any]:
    if count <= 0:
        return []
    wanted = sql.select(batch_lines).where(batch_lines.c.batch_id == batch_id, which)
    ordered = wanted.order_by(batch_lines.c.number).limit(count)
    return list(connection.execute(ordered.with_for_update(skip_locked=True)))


def _body(text: bytes) -> bytes:
    try:
        return bytes(_decoder.decode(text).body)
    except msgspec.DecodeError:
        return b""  # its file was taken away: the endpoint will say that there is nothing in it


def _texts(connection: Connection, batch: Batch, found: list[Any]) -> list[bytes]:
    """Lines that lie together are read together."""
    first = min(row.start_bytes for row in found)
    whole = max(row.start_bytes + row.size_bytes for row in found) - first
    if whole <= 2 * sum(row.size_bytes for row in found):
        data = read_range(connection, batch.input_file_id, first, whole)
        starts = [row.start_bytes - first for row in found]
        return [data[start : start + row.size_bytes] for start, row in zip(starts, found, strict=True)]
    return [read_range(connection, batch.input_file_id, row.start_bytes, row.size_bytes) for row in found]


def answer(connection: Connection, worker: str, answers: Iterable[Answer]) -> None:
    """What a lease was lost over is left alone: somebody else answers it."""
    for each in answers:
        values = {"state": DONE, "succeeded": each.succeeded, "answer": each.text}
        if not _change(connection, worker, each.claim, values):
            continue
        counts = batches.c
        counted = {
            "completed_count": counts.completed_count + int(each.succeeded),
            "failed_count": counts.failed_count + int(not each.succeeded),
            "prompt_tokens": counts.prompt_tokens + each.prompt_tokens,
            "cached_tokens": counts.cached_tokens + each.cached_tokens,
            "completion_tokens": counts.completion_tokens + each.completion_tokens,
        }
        connection.execute(sql.update(batches).where(counts.id == each.claim.batch.id).values(counted))


def give_back(connection: Connection, worker: str, lines: Iterable[Returned]) -> None:
    for each in lines:
        values = {"state": WAITING, "attempts": each.attempts}
        _change(connection, worker, each.claim, values)


def _change(connection: Connection, worker: str, claim: Claim, values: dict[str, Any]) -> bool:
    lines = batch_lines.c
    mine = sql.and_(
        lines.batch_id == claim.batch.id,
        lines.number == claim.number,
        lines.state == RUNNING,
        lines.worker == worker,
    )
    freed = {**values, "worker": None, "lease_s": None}
    return connection.execute(sql.update(batch_lines).where(mine).values(freed)).rowcount == 1


def renew(
    connection: Connection, worker: str, batch_ids: Iterable[str], now_s: float, lease_s: float
) -> None:
    lines = batch_lines.c
    mine = sql.and_(lines.batch_id.in_(list(batch_ids)), lines.state == RUNNING, lines.worker == worker)
    connection.execute(sql.update(batch_lines).where(mine).values(lease_s=now_s + lease_s))


def drop_rest(connection: Connection, batch_id: str, now_s: float) -> bool:
    """Nobody answers what is left; False while somebody still runs a line, and may yet answer it."""
    lines = batch_lines.c
    under_way = sql.select(lines.number).where(
        lines.batch_id == batch_id, lines.state == RUNNING, lines.lease_s >= now_s
    )
    if connection.execute(under_way.limit(1)).first() is not None:
        return False
    rest = sql.and_(lines.batch_id == batch_id, lines.state.in_([WAITING, RUNNING]))
    connection.execute(sql.update(batch_lines).where(rest).values(state=DROPPED, worker=None, lease_s=None))
    return True


def after_number(connection: Connection, batch_id: str, number: int, count: int) -> list[Any]:
    """The next lines in the order of the input; rows of number, custom_id, state, succeeded, answer."""
    lines = batch_lines.c
    wanted = sql.select(lines.number, lines.custom_id, lines.state, lines.succeeded, lines.answer).where(
        lines.batch_id == batch_id, lines.number > number
    )
    return list(connection.execute(wanted.order_by(lines.number).limit(count)))
