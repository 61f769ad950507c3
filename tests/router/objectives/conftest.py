from __future__ import annotations

from collections.abc import Iterator

import pytest

from router.store.access import StoreAccess
from router.store.database import Store


@pytest.fixture
def access(lite: Store) -> Iterator[StoreAccess]:
    opened = StoreAccess(lite)
    yield opened
    opened.close()
