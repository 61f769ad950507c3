from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from router.store.access import StoreAccess
from router.store.database import Store, sqlite_url
from router.tenants.keys import fingerprint
from tests.router.running import RunningRouter, running_router
from tests.router.tenants.postgres import Postgres, running_postgres
from tests.router.tenants.values import PEPPER

_numbers = itertools.count()


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The router runs on uvloop, so its tests do too."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def router() -> AsyncIterator[RunningRouter]:
    async with running_router() as running:
        yield running


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh, empty database of each kind."""
    if request.param == "sqlite":
        return sqlite_url(tmp_path / "store.db")
    server: Postgres = request.getfixturevalue("postgres")
    return server.new_database(f"test_{next(_numbers)}")


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    opened = Store(store_url)
    opened.prepare(fingerprint(PEPPER))
    yield opened
    opened.close()


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


@pytest.fixture
def access(lite: Store) -> Iterator[StoreAccess]:
    opened = StoreAccess(lite)
    yield opened
    opened.close()
