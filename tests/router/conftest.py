from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine

from router.routing.chat_template import AddedToken, ChatTemplate, TokenizerFile
from router.routing.models import Registry, Served, ServedModel
from router.store import database
from router.store.database import Store, StoreAccess, sqlite_url
from tests.event_loops import ClosingLoop
from tests.fakes.pipeline import words
from tests.in_memory import folder_in_memory
from tests.router.running import RunningRouter, running_router
from tests.router.stores import ON_BOTH_DATABASES, prepare_store, write_store
from tests.router.tenants.postgres import Postgres, PreparedDatabase, running_postgres

DATABASES = ("sqlite", "postgresql")
_numbers = itertools.count()


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The router runs on uvloop, so its tests do too."""
    return {"uvloop": ClosingLoop}


@pytest.fixture(scope="package", autouse=True)
def no_authorities(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Clients of tests read no certificates from this machine, which takes most of the time to make one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SSL_CERT_FILE", raising=False)
        patch.setenv("SSL_CERT_DIR", str(tmp_path_factory.mktemp("no-authorities")))
        yield


@pytest.fixture(scope="package", autouse=True)
def statements_compiled_once() -> Iterator[None]:
    """By one dialect for the engines of all tests: SQLAlchemy would compile all of them for each."""
    opened = database._engine
    compiled: dict[Any, Any] = {}
    first = create_engine("sqlite://")
    first.connect().close()  # knows now what this SQLite can do

    def sharing(url: str) -> Engine:
        engine = opened(url)
        if engine.dialect.name != first.dialect.name:
            return engine
        engine.dialect = first.dialect
        return engine.execution_options(compiled_cache=compiled)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "_engine", sharing)
        yield
    first.dispose()


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """What a store promises to keep it has on the disk before it answers; here nobody waits for a disk."""
    with folder_in_memory() as folder:
        yield folder


@pytest.fixture
async def router() -> AsyncIterator[RunningRouter]:
    async with running_router() as running:
        yield running


# As Qwen3's: it shows thoughts again, and closes them at once where none are wanted.
THINKING = (
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}</{{ m.role }}>{% endfor %}{% if add_generation_prompt %}<assistant>"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    "{% if style is defined %}({{ style }}){% endif %}{% endif %}"
)
THOUGHTFUL = ("<think>\n", "They ask", " for a city.\n</th", "ink>\n\n", "Paris", ".")


@pytest.fixture
def thinking(router: RunningRouter, monkeypatch: pytest.MonkeyPatch) -> RunningRouter:
    """A router whose model thinks before it speaks."""
    tokens = TokenizerFile((AddedToken("<user>", special=True), AddedToken("<assistant>", special=True)))
    template = ChatTemplate(THINKING, None, tokens)
    find_any = Registry.find_any

    def find(*given: Any) -> Served:
        served = find_any(*given)
        return replace(served, template=template) if isinstance(served, ServedModel) else served

    monkeypatch.setattr(Registry, "find_any", find)
    router.pipeline.script = lambda call: words(*THOUGHTFUL)
    return router


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as running:
        yield running


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "database" in metafunc.fixturenames:
        is_for_both = metafunc.definition.nodeid.partition("::")[0] in ON_BOTH_DATABASES
        metafunc.parametrize("database", DATABASES if is_for_both else DATABASES[:1])


@pytest.fixture(scope="session")
def prepared_database(postgres: Postgres) -> PreparedDatabase:
    url = postgres.new_database("prepared")
    prepare_store(url)
    return PreparedDatabase.at(url)


@pytest.fixture
def empty_store_url(database: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of each kind without a table."""
    if database == "sqlite":
        return sqlite_url(tmp_path / "store.db")
    server: Postgres = request.getfixturevalue("postgres")
    return server.new_database(f"test_{next(_numbers)}")


@pytest.fixture
def store_url(database: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of each kind with the current schema and nothing in it."""
    if database == "sqlite":
        return sqlite_url(write_store(tmp_path / "store.db"))
    prepared: PreparedDatabase = request.getfixturevalue("prepared_database")
    return prepared.reset()


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    opened = Store(store_url)
    yield opened
    opened.close()


@pytest.fixture
def lite(tmp_path: Path) -> Iterator[Store]:
    """SQLite alone, for what does not depend on the database."""
    opened = Store(sqlite_url(write_store(tmp_path / "lite.db")))
    yield opened
    opened.close()


@pytest.fixture
def access(lite: Store) -> Iterator[StoreAccess]:
    opened = StoreAccess(lite)
    yield opened
    opened.close()
