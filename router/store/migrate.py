"""Brings a store's schema up to date when a router starts, one router at a time."""

from __future__ import annotations

import logging
from importlib import resources

import sqlalchemy as sql
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine

# Any number that nothing else in the database uses.
_ADVISORY_LOCK = 0x1F11_6871


class SchemaError(Exception):
    """The store's schema is not one that this version can use."""


def upgrade(engine: Engine, to: str = "head") -> None:
    """All or nothing; SQLite's write lock or an advisory lock keeps other routers waiting meanwhile."""
    logging.getLogger("alembic").setLevel(logging.WARNING)
    config = Config()
    config.set_main_option("script_location", str(resources.files("router.store") / "migrations"))
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(sql.select(sql.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
        _refuse_newer(connection, ScriptDirectory.from_config(config))
        config.attributes["connection"] = connection
        command.upgrade(config, to)


def pending(connection: Connection) -> tuple[str | None, str | None]:
    """The schema that is there, None where there is none, and the one that this version makes of it."""
    scripts = ScriptDirectory(str(resources.files("router.store") / "migrations"))
    _refuse_newer(connection, scripts)
    return MigrationContext.configure(connection).get_current_revision(), scripts.get_current_head()


def _refuse_newer(connection: Connection, scripts: ScriptDirectory) -> None:
    known = {script.revision for script in scripts.walk_revisions()}
    present = set(MigrationContext.configure(connection).get_current_heads())
    if stranger := present - known:
        newest = scripts.get_current_head()
        raise SchemaError(
            f"the store has schema {', '.join(sorted(stranger))}, which a newer version of Inflight wrote; "
            f"this version knows schemas up to {newest}: start the newer one, or restore an older backup"
        )
