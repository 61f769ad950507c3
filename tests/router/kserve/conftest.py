from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.router.kserve.running import RunningKserve, running_kserve


@pytest.fixture
async def kserve() -> AsyncIterator[RunningKserve]:
    async with running_kserve() as running:
        yield running
