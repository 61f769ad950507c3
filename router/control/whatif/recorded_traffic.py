"""What was asked of a model, hour by hour: when, by whom and how much; nobody's words."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import sqlalchemy as sql

from router.store.schema import organisations, usage
from router.tenants.budget import day_of

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection

HOUR_S = 3600.0
SHOWN_HOURS = 24
MOST_REQUESTS = 100_000


class Arrival(NamedTuple):
    request_id: str
    started_s: float
    prompt_tokens: int
    completion_tokens: int
    tenant: str


class RecordedHour(NamedTuple):
    began_s: float
    requests: int
    prompt_tokens: int
    completion_tokens: int


def hours_of(connection: Connection, model: str, now_s: float) -> list[RecordedHour]:
    """The last ones in which anything was asked, the newest first: hours that end now, an hour ago, ..."""
    begins_s = [now_s - HOUR_S * (number + 1) for number in range(SHOWN_HOURS)]
    amounts = [sql.literal(1), usage.c.prompt_tokens, usage.c.completion_tokens]
    sums = [
        sql.func.coalesce(sql.func.sum(sql.case((_during(begin_s), amount), else_=0)), 0)
        for begin_s in begins_s
        for amount in amounts
    ]
    row = connection.execute(sql.select(*sums).where(_within(model, begins_s[-1], now_s))).one()
    found = [
        RecordedHour(begin_s, *map(int, row[3 * number : 3 * number + 3]))
        for number, begin_s in enumerate(begins_s)
    ]
    return [each for each in found if each.requests]


def arrivals_in(connection: Connection, model: str, began_s: float) -> list[Arrival]:
    """Of the hour from then on, in the order of their arrival; the first ones, where there are too many."""
    columns = (
        usage.c.request_id,
        usage.c.started_s,
        usage.c.prompt_tokens,
        usage.c.completion_tokens,
        usage.c.organisation_id,
    )
    wanted = sql.select(*columns).where(_within(model, began_s, began_s + HOUR_S), _during(began_s))
    rows = connection.execute(wanted.order_by(usage.c.started_s).limit(MOST_REQUESTS))
    return [Arrival(*row) for row in rows]


def _during(began_s: float) -> ColumnElement[bool]:
    return (usage.c.started_s >= began_s) & (usage.c.started_s < began_s + HOUR_S)


def _within(model: str, since_s: float, until_s: float) -> ColumnElement[bool]:
    """By tenant and day, as the index of usage has them."""
    days, at_s = {day_of(until_s)}, since_s
    while at_s < until_s:
        days.add(day_of(at_s))
        at_s += 24 * HOUR_S
    known = sql.select(organisations.c.id)
    return usage.c.organisation_id.in_(known) & usage.c.day.in_(sorted(days)) & (usage.c.model == model)
