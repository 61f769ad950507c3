from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.store.database import Store, sqlite_url
from router.tenancy.administration import Administration
from router.tenancy.keys import fingerprint
from tests.router.tenancy.postgres import Postgres, running_postgres
from tests.router.tenancy.values import PEPPER

_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh, empty database of each kind."""
    if request.param == "sqlite":
        return sqlite_url(tmp_path / "tenants.db")
    server: Postgres = request.getfixturevalue("postgres")
    return server.new_database(f"test_{next(_numbers)}")


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    opened = Store(store_url)
    opened.prepare(fingerprint(PEPPER))
    yield opened
    opened.close()


@pytest.fixture
def administration(store: Store) -> Administration:
    return Administration(store, PEPPER)
