"""Brings a store's schema up to date when a router starts, one router at a time."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

import sqlalchemy as sql
from sqlalchemy import Connection, Engine

# Any number that nothing else in the database uses.
_ADVISORY_LOCK = 0x1F11_6871
_SCRIPTS = Path(__file__).parent / "migrations"
_PRESENT = sql.table("alembic_version", sql.column("version_num"))


class SchemaError(Exception):
    """The store's schema is not one that this version can use."""


def upgrade(engine: Engine, to: str = "head") -> None:
    """All or nothing; SQLite's write lock or an advisory lock keeps other routers waiting meanwhile."""
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(sql.select(sql.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
        present, newest = pending(connection)
        if present != newest or to != "head":
            _run_scripts(connection, to)


def downgrade(engine: Engine, to: str) -> str | None:
    """For an older version of Inflight: what only newer ones know is lost. Tells what the schema was."""
    allowed = revisions()
    if to not in allowed:
        raise SchemaError(f"there is no schema {to}; there are {', '.join(allowed)}")
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(sql.select(sql.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
        present, _ = pending(connection)
        if present is None or present < to:
            raise SchemaError(f"the store has schema {present or 'none'}, which is older than {to}")
        if present != to:
            _run_scripts(connection, to, is_downgrade=True)
    return present


def pending(connection: Connection) -> tuple[str | None, str]:
    """The schema that is there, None where there is none, and the one that this version makes of it."""
    is_there = sql.inspect(connection).has_table(_PRESENT.name)
    present: str | None = connection.scalar(sql.select(_PRESENT.c.version_num)) if is_there else None
    known = revisions()
    if present is not None and present not in known:
        raise SchemaError(
            f"the store has schema {present}, which a newer version of Inflight wrote; "
            f"this version knows schemas up to {known[-1]}: start the newer one, or restore an older backup"
        )
    return present, known[-1]


@cache
def revisions() -> tuple[str, ...]:
    """All that this version knows, the newest last, by the names of their files."""
    return tuple(sorted(path.name[1:5] for path in (_SCRIPTS / "versions").glob("r????_*.py")))


def _run_scripts(connection: Connection, to: str, *, is_downgrade: bool = False) -> None:
    # Imported here: Alembic takes as long to import as the rest of the store, and few starts need it.
    from alembic import command
    from alembic.config import Config

    logging.getLogger("alembic").setLevel(logging.WARNING)
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    config.attributes["connection"] = connection
    (command.downgrade if is_downgrade else command.upgrade)(config, to)
