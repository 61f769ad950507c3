from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import pytest

from tests.event_loops import ClosingLoop
from tests.fakes.triton_server import FakeTriton
from tests.pace import patience
from tests.router.running import RunningRouter, running_router

_Result = TypeVar("_Result")


class LoopThread:
    """An event loop in a thread of its own, for servers that synchronous clients talk to."""

    def __init__(self) -> None:
        self.loop = ClosingLoop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(patience(30))

    def enter(self, manager: AbstractAsyncContextManager[_Result]) -> _Result:
        return self.run(_enter(manager))

    def exit(self, manager: AbstractAsyncContextManager[Any]) -> None:
        self.run(_exit(manager))

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


async def _enter(manager: AbstractAsyncContextManager[_Result]) -> _Result:
    return await manager.__aenter__()


async def _exit(manager: AbstractAsyncContextManager[Any]) -> None:
    await manager.__aexit__(None, None, None)


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture
def router(loop_thread: LoopThread) -> Iterator[RunningRouter]:
    manager = running_router()
    yield loop_thread.enter(manager)
    loop_thread.exit(manager)


@pytest.fixture
def triton(loop_thread: LoopThread) -> Iterator[FakeTriton]:
    async def start() -> FakeTriton:
        return await FakeTriton().start()

    fake = loop_thread.run(start())
    yield fake
    loop_thread.run(fake.stop())
