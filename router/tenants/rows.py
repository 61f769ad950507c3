"""Values to rows of the store, and back."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import msgspec

from router.core.tenant import (
    ApiKey,
    AuditEntry,
    Limits,
    Organisation,
    Price,
    Role,
    Scope,
    UsageRecord,
    User,
)
from router.tenants.calendar import day_of

if TYPE_CHECKING:
    from sqlalchemy import RowMapping

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
    values["scopes"] = frozenset(Scope(name) for name in row["scopes"].split())
    values["models"] = None if row["models"] is None else frozenset(row["models"].split())
    return ApiKey(**values)


def row_of_key(key: ApiKey) -> dict[str, Any]:
    values = asdict(key)
    values["scopes"] = " ".join(sorted(scope.value for scope in key.scopes))
    values["models"] = None if key.models is None else " ".join(sorted(key.models))
    return values


def limits_of(row: RowMapping) -> Limits:
    return Limits(**{name: row[name] for name in _LIMIT_NAMES})


def price_of(row: RowMapping) -> Price:
    return Price(row["model"], row["prompt"], row["cached_prompt"], row["completion"])


_USAGE_NAMES = tuple(each.name for each in fields(UsageRecord))


def row_of_usage(record: UsageRecord) -> dict[str, Any]:
    values = {name: getattr(record, name) for name in _USAGE_NAMES}  # asdict() would copy deeply
    values["day"] = day_of(record.started_s)
    values["stages"] = msgspec.json.encode(record.stages).decode()
    return values


def usage_of(row: RowMapping) -> UsageRecord:
    values = {field.name: row[field.name] for field in fields(UsageRecord)}
    values["stages"] = msgspec.json.decode(row["stages"])
    return UsageRecord(**values)


def row_of_audit(entry: AuditEntry) -> dict[str, Any]:
    return {**asdict(entry), "detail": msgspec.json.encode(entry.detail).decode()}


def audit_of(row: RowMapping) -> AuditEntry:
    values = {field.name: row[field.name] for field in fields(AuditEntry)}
    values["detail"] = msgspec.json.decode(row["detail"])
    return AuditEntry(**values)
