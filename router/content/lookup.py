"""How stored content is looked up: by its owner, by id, and in pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
import sqlalchemy as sql
from msgspec import Meta
from sqlalchemy import ColumnElement, Connection, Select, Table

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.tenant import Caller

Entry = TypeVar("Entry")
_ID_CHARS = 100


@dataclass(frozen=True, slots=True)
class Owner:
    """One user of one organisation; what is theirs does not exist for anybody else."""

    organisation_id: str
    user_id: str

    @classmethod
    def of(cls, caller: Caller) -> Owner:
        return cls(caller.organisation.id, caller.user.id)

    def owns(self, table: Table) -> ColumnElement[bool]:
        return sql.and_(table.c.organisation_id == self.organisation_id, table.c.user_id == self.user_id)


def is_there(at: Connection, table: Table, row_id: str) -> bool:
    """Whether it is stored already: by a router that died before it could tell so."""
    return at.execute(sql.select(table.c.id).where(table.c.id == row_id)).first() is not None


def checked_id(kind: str, given: str, param: str | None = None) -> str:
    """An id that may be looked up; what no id looks like is not found, and never reaches the store."""
    if not given.isascii() or not given.replace("_", "").replace("-", "").isalnum() or len(given) > _ID_CHARS:
        raise missing(kind, given, param)
    return given


def missing(kind: str, given: str, param: str | None = None) -> InflightError:
    shown = given if given.isprintable() and len(given) <= _ID_CHARS else "that id"
    return InflightError(ErrorKind.NOT_FOUND, f"{kind} with id '{shown}' not found.", param)


class PageQuery(msgspec.Struct, frozen=True):
    """`after` is the id of the last entry that the caller has."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Page(Generic[Entry]):
    entries: Sequence[Entry]
    has_more: bool = False

    @classmethod
    def of(cls, entries: Sequence[Entry], limit: int) -> Page[Entry]:
        """From a list that has one more than the limit where there are more."""
        return cls(entries[:limit], len(entries) > limit)

    def rendered(self, show: Callable[[Entry], dict[str, Any]]) -> dict[str, Any]:
        data = [show(entry) for entry in self.entries]
        return {
            "object": "list",
            "data": data,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": self.has_more,
        }


def next_rows(
    chosen: Select[Any], by: Sequence[ColumnElement[Any]], after: Sequence[Any], ascending: bool, limit: int
) -> Select[Any]:
    """Rows in the order of the columns `by`, behind the row that has the values `after` in them, if any."""
    if after:
        place, mark = sql.tuple_(*by), sql.tuple_(*map(sql.literal, after))
        chosen = chosen.where(place > mark if ascending else place < mark)
    return chosen.order_by(*(column if ascending else column.desc() for column in by)).limit(limit)


def page_of(
    entries: Sequence[Entry], query: PageQuery, kind: str, id_of: Callable[[Entry], str]
) -> Page[Entry]:
    """Of a list that is known whole, the oldest first."""
    ordered = entries if query.order == "asc" else entries[::-1]
    if query.after is not None:
        places = [index for index, entry in enumerate(ordered) if id_of(entry) == query.after]
        if not places:
            raise missing(kind, query.after, "after")
        ordered = ordered[places[0] + 1 :]
    return Page.of(ordered, query.limit)
