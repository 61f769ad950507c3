"""Finds rows of one organisation, and says so where there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sql

from router.store.schema import api_keys, organisations, users
from router.tenancy.model import Role
from router.tenancy.rows import key_of, user_of

if TYPE_CHECKING:
    from sqlalchemy import Connection, RowMapping

    from router.tenancy.model import ApiKey, User


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
        raise ValueError(f"{user.name} is the last owner: make another one first")


def has_keys(connection: Connection) -> bool:
    """Also revoked ones: taking back the last key must not open the door."""
    return connection.execute(sql.select(api_keys.c.id).limit(1)).first() is not None
