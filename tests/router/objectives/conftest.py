from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from router.store.access import StoreAccess
from router.store.database import Store, sqlite_url
from router.tenancy.keys import fingerprint
from tests.router.tenancy.values import PEPPER


@pytest.fixture(scope="session")
def migrated_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once, copied for each test."""
    path = tmp_path_factory.mktemp("migrated") / "store.db"
    opened = Store(sqlite_url(path))
    opened.prepare(fingerprint(PEPPER))
    opened.close()
    return path


@pytest.fixture
def lite(migrated_store: Path, tmp_path: Path) -> Iterator[Store]:
    """SQLite alone, for what does not depend on the database."""
    path = tmp_path / "lite.db"
    path.write_bytes(migrated_store.read_bytes())
    opened = Store(sqlite_url(path))
    yield opened
    opened.close()


@pytest.fixture
def access(lite: Store) -> Iterator[StoreAccess]:
    opened = StoreAccess(lite)
    yield opened
    opened.close()
