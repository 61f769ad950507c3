"""What the store keeps of tenants: found, turned into values and back, summed, exported and deleted."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import msgspec
import sqlalchemy as sql

from router.core.tenant import (
    PLATFORM_SCOPES,
    ApiKey,
    AuditEntry,
    Limits,
    Organisation,
    Price,
    Role,
    Scope,
    UsageRecord,
    UsageSummary,
    User,
)
from router.store import content_tables
from router.store.schema import api_keys, audit, facts, leases, limits, organisations, usage, users
from router.tenants.budget import day_of

if TYPE_CHECKING:
    from sqlalchemy import Connection, RowMapping

_SCOPES = frozenset(scope.value for scope in Scope)
_LIMIT_NAMES = tuple(field.name for field in fields(Limits))


def organisation_of(row: RowMapping) -> Organisation:
    return Organisation(row["id"], row["name"] or "", row["created_s"], row["deleted_s"])


def user_of(row: RowMapping) -> User:
    values = {name: row[name] for name in ("id", "organisation_id", "name", "created_s")}
    return User(role=Role(row["role"]), platform_admin=bool(row["platform_admin"]), **values)


def row_of_user(user: User) -> dict[str, Any]:
    return {**asdict(user), "role": user.role.value}


def key_of(row: RowMapping) -> ApiKey:
    values = dict(row)
    named = f"{row['scopes']} {values.pop('platform_scopes')}".split()
    # A scope that only a newer version knows allows nothing here.
    values["scopes"] = frozenset(Scope(name) for name in named if name in _SCOPES)
    values["models"] = None if row["models"] is None else frozenset(row["models"].split())
    return ApiKey(**values)


def row_of_key(key: ApiKey) -> dict[str, Any]:
    values = asdict(key)
    values["scopes"] = " ".join(sorted(scope.value for scope in key.scopes - PLATFORM_SCOPES))
    values["platform_scopes"] = " ".join(sorted(scope.value for scope in key.scopes & PLATFORM_SCOPES))
    values["models"] = None if key.models is None else " ".join(sorted(key.models))
    return values


def limits_of(row: RowMapping) -> Limits:
    return Limits(**{name: row[name] for name in _LIMIT_NAMES})


def limits_in(connection: Connection, organisation_id: str) -> dict[str, Limits]:
    """By the id of the organisation or key that they hold for."""
    return {row["subject"]: limits_of(row) for row in all_of(connection, limits, organisation_id)}


def price_of(row: RowMapping) -> Price:
    return Price(row["model"], row["prompt"], row["cached_prompt"], row["completion"])


USAGE_NAMES = (*UsageRecord.__struct_fields__, "day")


def row_of_usage(record: UsageRecord) -> tuple[Any, ...]:
    """In the order of USAGE_NAMES."""
    *values, stages = msgspec.structs.astuple(record)
    return *values, msgspec.json.encode(stages).decode(), day_of(record.started_s)


def row_of_audit(entry: AuditEntry) -> dict[str, Any]:
    return {**asdict(entry), "detail": msgspec.json.encode(entry.detail).decode()}


def audit_of(row: RowMapping) -> AuditEntry:
    values = {field.name: row[field.name] for field in fields(AuditEntry)}
    values["detail"] = msgspec.json.decode(row["detail"])
    return AuditEntry(**values)


KEYS_WERE_MADE = "keys_were_made"


class NotFound(Exception):
    """There is no such organisation, user or key, or no longer."""


def touch(connection: Connection, organisation_id: str, version: int) -> None:
    """Marks an organisation as changed, so that every router reads it again."""
    there = (organisations.c.id == organisation_id) & organisations.c.deleted_s.is_(None)
    if not connection.execute(sql.update(organisations).where(there).values(version=version)).rowcount:
        raise NotFound(f"there is no organisation {organisation_id}")


def all_of(connection: Connection, table: sql.Table, organisation_id: str) -> list[RowMapping]:
    rows = connection.execute(sql.select(table).where(table.c.organisation_id == organisation_id))
    return list(rows.mappings())


def check_there(connection: Connection, organisation_id: str) -> None:
    there = (organisations.c.id == organisation_id) & organisations.c.deleted_s.is_(None)
    if connection.execute(sql.select(organisations.c.id).where(there)).first() is None:
        raise NotFound(f"there is no organisation {organisation_id}")


def deleted_among(connection: Connection, organisation_ids: set[str]) -> set[str]:
    """Those that are deleted, whose requests may still be in flight; the others stay until the commit."""
    named = organisations.c.id.in_(organisation_ids)
    found = sql.select(organisations.c.id, organisations.c.deleted_s).where(named)
    rows = connection.execute(found.order_by(organisations.c.id).with_for_update(read=True))
    return {row.id for row in rows if row.deleted_s is not None}


def find_user(connection: Connection, organisation_id: str, user_id: str) -> User:
    there = (users.c.id == user_id) & (users.c.organisation_id == organisation_id)
    row = connection.execute(sql.select(users).where(there)).mappings().first()
    if row is None:
        raise NotFound(f"there is no user {user_id}")
    return user_of(row)


def find_key(connection: Connection, organisation_id: str, key_id: str) -> ApiKey:
    """A key that is not revoked."""
    there = (api_keys.c.id == key_id) & (api_keys.c.organisation_id == organisation_id)
    row = connection.execute(sql.select(api_keys).where(there)).mappings().first()
    if row is None or row["revoked_s"] is not None:
        raise NotFound(f"there is no key {key_id}")
    return key_of(row)


def find_holder(connection: Connection, organisation_id: str, key_id: str) -> User:
    """Of a key that is not revoked."""
    key = find_key(connection, organisation_id, key_id)
    return find_user(connection, organisation_id, key.user_id)


def holder_of(connection: Connection, organisation_id: str, key_id: str) -> str | None:
    there = (api_keys.c.id == key_id) & (api_keys.c.organisation_id == organisation_id)
    found: str | None = connection.scalar(sql.select(api_keys.c.user_id).where(there))
    return found


def keep_an_owner(connection: Connection, user: User, becomes: Role | None) -> None:
    """Refuses to take the last owner away from an organisation."""
    if user.role is not Role.OWNER or becomes is Role.OWNER:
        return
    owners = (users.c.organisation_id == user.organisation_id) & (users.c.role == Role.OWNER.value)
    if connection.scalar(sql.select(sql.func.count()).where(owners)) == 1:
        raise ValueError(f"{user.name} is the last owner: make another user owner first")


def has_keys(connection: Connection) -> bool:
    """Also where all were revoked, or went with their tenants: the door does not open again."""
    kept = sql.select(api_keys.c.id).limit(1)
    made = sql.select(facts.c.name).where(facts.c.name == KEYS_WERE_MADE)
    return any(connection.execute(each).first() is not None for each in (kept, made))


_GROUPS = {
    "organisation": usage.c.organisation_id,
    "user": usage.c.user_id,
    "key": usage.c.key_id,
    "model": usage.c.model,
    "day": usage.c.day,
}
_SECRET = ("digest", "previous_digest")


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
    exported.update(content_tables.export_files(connection, organisation_id))
    exported.update(content_tables.export_conversations(connection, organisation_id))
    return exported


def delete(connection: Connection, organisation_id: str, now_s: float) -> None:
    """All but what it has used, which is the bill, and what was done by whom, which is the audit."""
    key_ids = connection.scalars(
        sql.select(api_keys.c.id).where(api_keys.c.organisation_id == organisation_id)
    )
    subjects = [organisation_id, *key_ids]
    content_tables.delete_files(connection, organisation_id)
    content_tables.delete_conversations(connection, organisation_id)
    connection.execute(sql.delete(leases).where(leases.c.subject.in_(subjects)))
    for table in (limits, api_keys, users):
        connection.execute(sql.delete(table).where(table.c.organisation_id == organisation_id))
    marked = sql.update(organisations).where(organisations.c.id == organisation_id)
    connection.execute(marked.values(name=None, deleted_s=now_s))
