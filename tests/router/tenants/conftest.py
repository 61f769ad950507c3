from __future__ import annotations

import pytest

from router.store.database import Store
from router.tenants.administration import Administration
from tests.router.tenants.values import PEPPER


@pytest.fixture
def administration(store: Store) -> Administration:
    return Administration(store, PEPPER)
