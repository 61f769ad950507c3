from __future__ import annotations

from collections.abc import Iterator

import pytest

from router.store.database import Store, sqlite_url
from tests.router.stores import write_store


@pytest.fixture(scope="module")
def lite_for_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """For property tests, which clean up behind themselves."""
    opened = Store(sqlite_url(write_store(tmp_path_factory.mktemp("lite") / "store.db")))
    yield opened
    opened.close()
