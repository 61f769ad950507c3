from __future__ import annotations

import pytest

from router.store.database import Store
from router.tenancy.administration import Administration
from tests.router.tenancy.values import PEPPER


@pytest.fixture
def administration(store: Store) -> Administration:
    return Administration(store, PEPPER)
