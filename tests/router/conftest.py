from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from tests.router.running import RunningRouter, running_router


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The router runs on uvloop, so its tests do too."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def router() -> AsyncIterator[RunningRouter]:
    async with running_router() as running:
        yield running
