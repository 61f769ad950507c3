"""Brings a store's schema up to date when a router starts, one router at a time."""

from __future__ import annotations

import logging
from functools import cache
from importlib import resources

import sqlalchemy as sql
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine

# Any number that nothing else in the database uses.
_ADVISORY_LOCK = 0x1F11_6871
_SCRIPTS = str(resources.files("router.store") / "migrations")


class SchemaError(Exception):
    """The store's schema is not one that this version can use."""


def upgrade(engine: Engine, to: str = "head") -> None:
    """All or nothing; SQLite's write lock or an advisory lock keeps other routers waiting meanwhile."""
    logging.getLogger("alembic").setLevel(logging.WARNING)
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(sql.select(sql.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
        present, newest = pending(connection)
        if present == newest and to == "head":
            return  # as at almost every start: Alembic would read all revisions again to see it
        config = Config()
        config.set_main_option("script_location", _SCRIPTS)
        config.attributes["connection"] = connection
        command.upgrade(config, to)


def pending(connection: Connection) -> tuple[str | None, str]:
    """The schema that is there, None where there is none, and the one that this version makes of it."""
    present, newest = MigrationContext.configure(connection).get_current_revision(), _revisions()[0]
    if present not in (None, *_revisions()):
        raise SchemaError(
            f"the store has schema {present}, which a newer version of Inflight wrote; "
            f"this version knows schemas up to {newest}: start the newer one, or restore an older backup"
        )
    return present, newest


@cache
def _revisions() -> tuple[str, ...]:
    """All that this version knows, the newest first."""
    return tuple(script.revision for script in ScriptDirectory(_SCRIPTS).walk_revisions())
