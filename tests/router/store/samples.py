"""A row of every table that a store has, whatever its schema."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sql

from router.store.database import Store

_ID = "sample-1"


def fill(store: Store) -> None:
    """One row in each, with something in every column; ids are the same, so that they belong together."""
    found = sql.MetaData()
    with store.begin() as connection:
        found.reflect(connection)
        for table in found.sorted_tables:
            if table.name not in ("alembic_version", "counters"):
                connection.execute(sql.insert(table).values({each.name: _sample(each) for each in table.c}))


def _sample(column: sql.Column[Any]) -> object:
    if isinstance(column.type, sql.Boolean):
        return True
    if isinstance(column.type, sql.LargeBinary):
        return b"\x00\xff sample"
    if isinstance(column.type, sql.Float):
        return 1_000_000.25
    if isinstance(column.type, sql.Integer):
        return 7
    return _ID if column.type.length is None else _ID[: column.type.length]  # type: ignore[attr-defined]


def rows_of(store: Store) -> dict[str, list[tuple[Any, ...]]]:
    """Of all tables, by their names, the columns in the order of theirs."""
    found = sql.MetaData()
    with store.read() as connection:
        found.reflect(connection)
        return {
            table.name: sorted(
                (
                    tuple(row)
                    for row in connection.execute(sql.select(*sorted(table.c, key=lambda each: each.name)))
                ),
                key=repr,
            )
            for table in found.sorted_tables
            if table.name != "alembic_version"
        }
