"""Whose things are: one user's of one organisation; for everybody else they do not exist."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sql

from python_backend.wire.errors import ErrorKind, InflightError

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Table

    from router.core.tenant import Caller

_ID_CHARS = 100


@dataclass(frozen=True, slots=True)
class Owner:
    organisation_id: str
    user_id: str

    @classmethod
    def of(cls, caller: Caller) -> Owner:
        return cls(caller.organisation.id, caller.user.id)

    def owns(self, table: Table) -> ColumnElement[bool]:
        return sql.and_(table.c.organisation_id == self.organisation_id, table.c.user_id == self.user_id)


def checked_id(kind: str, given: str, param: str | None = None) -> str:
    """An id that may be looked up; what no id looks like is not found, and never reaches the store."""
    if not given.isascii() or not given.replace("_", "").isalnum() or len(given) > _ID_CHARS:
        raise missing(kind, given, param)
    return given


def missing(kind: str, given: str, param: str | None = None) -> InflightError:
    shown = given if given.isprintable() and len(given) <= _ID_CHARS else "that id"
    return InflightError(ErrorKind.NOT_FOUND, f"{kind} with id '{shown}' not found.", param)
