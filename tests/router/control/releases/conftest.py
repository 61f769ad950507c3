from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from router.store.database import Store, sqlite_url


@pytest.fixture(scope="module")
def lite_for_all(empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """For property tests, which clean up behind themselves."""
    path = tmp_path_factory.mktemp("lite") / "store.db"
    path.write_bytes(empty_store.read_bytes())
    opened = Store(sqlite_url(path))
    yield opened
    opened.close()
