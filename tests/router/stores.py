"""Databases with the current schema, migrated once a process and copied for each test."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from router.store.database import Store, sqlite_url
from router.tenants.keys import fingerprint
from tests.router.tenants.values import PEPPER

# Tests of modules that hold SQL, which runs against both databases; for all others SQLite will do.
ON_BOTH_DATABASES = frozenset(
    f"tests/router/{path}"
    for path in (
        "content/batches/test_claims.py",
        "content/batches/test_survival.py",
        "content/conversations/test_stores.py",
        "content/files/test_pieces.py",
        "content/files/test_rows.py",
        "control/objectives/test_commands.py",
        "control/releases/test_adoption.py",
        "control/releases/test_commands.py",
        "control/releases/test_lease.py",
        "control/releases/test_shadow_figures.py",
        "control/whatif/test_recorded_traffic.py",
        "store/test_backup.py",
        "store/test_migrate.py",
        "store/test_retention.py",
        "tenants/test_administration.py",
        "tenants/test_store.py",
        "tenants/test_tenancy.py",
        "tenants/test_treasury.py",
    )
)


def write_store(path: Path) -> Path:
    """SQLite with the current schema and nothing in it, for keys made with the tests' pepper."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_empty_sqlite())
    return path


@cache
def _empty_sqlite() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "store.db"
        prepare_store(sqlite_url(path))
        return path.read_bytes()


def prepare_store(url: str) -> None:
    store = Store(url)
    try:
        store.prepare(fingerprint(PEPPER))
    finally:
        store.close()
