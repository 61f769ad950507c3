"""What was used and done: sums, the audit log, and all of a tenant, to take away or to delete."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sql

from router.core.tenant import UsageSummary
from router.store import content_tables, conversation_tables
from router.store.schema import api_keys, audit, leases, limits, organisations, spending, usage, users
from router.tenants.rows import NotFound, all_of, audit_of

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from router.core.tenant import AuditEntry

_GROUPS = {
    "organisation": usage.c.organisation_id,
    "user": usage.c.user_id,
    "key": usage.c.key_id,
    "model": usage.c.model,
    "day": usage.c.day,
}
_SECRET = ("digest", "previous_digest")


class Holding(NamedTuple):
    """Something else that is kept of tenants: all of one's, as plain values, and the end of it."""

    export: Callable[[Connection, str], dict[str, Any]]
    delete: Callable[[Connection, str], None]


HOLDINGS = (
    Holding(content_tables.export, content_tables.delete),
    Holding(conversation_tables.export, conversation_tables.delete),
)


def usage_summary(
    connection: Connection, organisation_id: str | None, by: tuple[str, ...], since_day: str, until_day: str
) -> list[UsageSummary]:
    if unknown := set(by) - _GROUPS.keys():
        raise ValueError(f"by: {', '.join(sorted(unknown))}: allowed are {', '.join(_GROUPS)}")
    groups = [_GROUPS[name] for name in by]
    amounts = (usage.c.prompt_tokens, usage.c.cached_tokens, usage.c.completion_tokens, usage.c.cost)
    sums = [sql.func.count(), *(sql.func.coalesce(sql.func.sum(amount), 0) for amount in amounts)]
    chosen = sql.select(*groups, *sums).where(usage.c.day.between(since_day, until_day))
    if organisation_id is not None:
        chosen = chosen.where(usage.c.organisation_id == organisation_id)
    if groups:
        chosen = chosen.group_by(*groups).order_by(*groups)
    rows = connection.execute(chosen).all()
    # PostgreSQL sums big integers as decimals.
    return [UsageSummary(tuple(row[: len(by)]), *map(int, row[len(by) :])) for row in rows]


def audit_entries(connection: Connection, organisation_id: str | None, most: int) -> list[AuditEntry]:
    chosen = sql.select(audit).order_by(audit.c.id.desc()).limit(most)
    if organisation_id is not None:
        chosen = chosen.where(audit.c.organisation_id == organisation_id)
    return [audit_of(row) for row in connection.execute(chosen).mappings()]


def export(connection: Connection, organisation_id: str) -> dict[str, Any]:
    """Plain values, ready to be written as JSON."""
    of_it = sql.select(organisations).where(organisations.c.id == organisation_id)
    row = connection.execute(of_it).mappings().first()
    if row is None:
        raise NotFound(f"there is no organisation {organisation_id}")
    exported: dict[str, Any] = {"organisation": dict(row)}
    for table in (users, api_keys, limits, usage, audit):
        rows = all_of(connection, table, organisation_id)
        exported[table.name] = [
            {name: value for name, value in row.items() if name not in _SECRET} for row in rows
        ]
    for holding in HOLDINGS:
        exported.update(holding.export(connection, organisation_id))
    return exported


def file_contents(connection: Connection, organisation_id: str) -> Iterator[tuple[str, int, bytes]]:
    """The content of its files, which `export` only lists: id, number of the piece, and the piece."""
    return content_tables.pieces(connection, organisation_id)


def delete(connection: Connection, organisation_id: str, now_s: float) -> None:
    key_ids = connection.scalars(
        sql.select(api_keys.c.id).where(api_keys.c.organisation_id == organisation_id)
    )
    subjects = [organisation_id, *key_ids]
    for holding in HOLDINGS:
        holding.delete(connection, organisation_id)
    for table in (spending, leases):
        connection.execute(sql.delete(table).where(table.c.subject.in_(subjects)))
    for table in (usage, audit, limits, api_keys, users):
        connection.execute(sql.delete(table).where(table.c.organisation_id == organisation_id))
    # Its creation is an act on the platform, and names it.
    connection.execute(sql.delete(audit).where(audit.c.target == organisation_id))
    marked = sql.update(organisations).where(organisations.c.id == organisation_id)
    connection.execute(marked.values(name=None, deleted_s=now_s))
