from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from router.store.database import Store, sqlite_url
from router.tenancy.keys import fingerprint
from tests.router.tenancy.values import PEPPER


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Migrated once, copied for each test."""
    path = tmp_path_factory.mktemp("empty") / "store.db"
    opened = Store(sqlite_url(path))
    opened.prepare(fingerprint(PEPPER))
    opened.close()
    return path


@pytest.fixture
def lite(empty_store: Path, tmp_path: Path) -> Iterator[Store]:
    """SQLite alone, for what does not depend on the database."""
    path = tmp_path / "lite.db"
    path.write_bytes(empty_store.read_bytes())
    opened = Store(sqlite_url(path))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def lite_for_all(empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """For property tests, which clean up behind themselves."""
    path = tmp_path_factory.mktemp("lite") / "store.db"
    path.write_bytes(empty_store.read_bytes())
    opened = Store(sqlite_url(path))
    yield opened
    opened.close()
