"""A real PostgreSQL for tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from launcher.commands.chaos.backing import Missing, PrivatePostgres, short_directory
from tests.in_memory import place


@dataclass(frozen=True)
class Postgres:
    socket_dir: Path

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(host=str(self.socket_dir), user="postgres", dbname="postgres", autocommit=True)

    def new_database(self, name: str) -> str:
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return f"postgresql://postgres@/{name}?host={self.socket_dir}"


@dataclass(frozen=True)
class PreparedDatabase:
    """One that is brought back for each test to what was in it first: a new one takes far longer."""

    url: str
    rows: dict[str, list[tuple[Any, ...]]]

    @staticmethod
    def at(url: str) -> PreparedDatabase:
        with psycopg.connect(url) as connection:
            named = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
            tables = [name for (name,) in named]
            rows = {name: connection.execute(f"SELECT * FROM {name}".encode()).fetchall() for name in tables}
        return PreparedDatabase(url, rows)

    def reset(self) -> str:
        """Its URL; whoever is still connected to it is not any more."""
        with psycopg.connect(self.url) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            # As TRUNCATE does it, which makes new files for every table however little is in it.
            connection.execute("SET session_replication_role = replica")
            connection.execute("".join(f"DELETE FROM {table};" for table in self.rows).encode())
            connection.execute("SELECT setval(oid, 1, false) FROM pg_class WHERE relkind = 'S'")
            for table, rows in self.rows.items():
                for row in rows:
                    places = ", ".join(["%s"] * len(row))
                    connection.execute(f"INSERT INTO {table} VALUES ({places})".encode(), row)
        return self.url


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    # Not below pytest's own directory: only its owner may enter that.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", place())
        directory = short_directory("pg")
    try:
        try:
            server = PrivatePostgres(directory)
            server.start()
        except Missing as error:
            pytest.skip(str(error))
        try:
            yield Postgres(directory)
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory)
