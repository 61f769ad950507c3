"""Turns at work that tenants share, waited for on the event loop; whoever leaves is forgotten."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from typing import Any, TypeVar

from python_backend.sharing.fair_queue import FairQueue
from python_backend.sharing.processor_share import ProcessorShare
from python_backend.wire.errors import ErrorKind, InflightError

Result = TypeVar("Result")
_COME_BACK_S = 1.0
OnLeave = Callable[[Callable[[], None]], None]


class FairPool:
    """`places` turns at a time, divided by tenant; `what` is done in them, for errors.

    Who is cancelled while waiting takes no turn. The threads of `run` begin with the first work. With a
    `share`, tenants rest when they have worked for longer than it allows; one without a name is the router
    itself, and never does.
    """

    def __init__(
        self, what: str, places: int, waiting_each: int, share: ProcessorShare | None = None
    ) -> None:
        self._what = what
        self._share = share
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue(places, waiting_each)
        self._finishing: set[asyncio.Task[Any]] = set()
        self._threads = ThreadPoolExecutor(places, thread_name_prefix=what.replace(" ", "-"))

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Raises RATE_LIMITED where too many of this tenant wait already."""
        await self._take(tenant)
        try:
            yield
        finally:
            self._give_back(tenant)

    async def run(self, tenant: str, work: Callable[..., Result], *given: Any) -> Result:
        """In a thread; its turn ends with the work, also where nobody waits for it any more."""
        await self._take(tenant)
        loop = asyncio.get_running_loop()
        took_s = 0.0

        def timed() -> Result:
            nonlocal took_s
            began_s = time.thread_time()
            try:
                return work(*given)
            finally:
                took_s = time.thread_time() - began_s

        def ended() -> None:
            self.charge(tenant, took_s)
            self._give_back(tenant)

        job = self._threads.submit(copy_context().run, timed)
        job.add_done_callback(lambda _: _call_soon(loop, ended))
        try:
            return await asyncio.wrap_future(job)
        finally:
            del job  # its exception has this frame: together they would keep a refused body for long

    async def finish(
        self, tenant: str, work: Callable[..., Coroutine[Any, Any, Result]], *given: Any
    ) -> Result:
        """In its turn, which ends with the work, also where nobody waits for it any more."""
        await self._take(tenant)
        task = asyncio.get_running_loop().create_task(work(*given))
        self._finishing.add(task)

        def ended(_: asyncio.Task[Any]) -> None:
            self._finishing.discard(task)
            if not task.cancelled():
                task.exception()  # whoever has left does not ask
            self._give_back(tenant)

        task.add_done_callback(ended)
        return await asyncio.shield(task)

    async def finished(self) -> None:
        """Returns when all such work has ended."""
        if self._finishing:
            await asyncio.wait(self._finishing)

    def charge(self, tenant: str, took_s: float) -> None:
        """Before its turn ends: the work took so much time of a processor, for which it may have to rest."""
        if self._share is None or not tenant:
            return
        loop = asyncio.get_running_loop()
        if rest_s := self._share.rest_s(tenant, took_s, loop.time()):
            self._queue.rest(tenant)
            loop.call_later(rest_s, self._wake, tenant)

    def _wake(self, tenant: str) -> None:
        self._queue.wake(tenant)
        self._hand_out()

    def close(self, wait: bool = False) -> None:
        self._threads.shutdown(wait=wait, cancel_futures=True)

    async def _take(self, tenant: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        if not self._queue.join(tenant, turn):
            message = f"this organisation has too many requests waiting for {self._what}; try again later"
            raise InflightError(ErrorKind.RATE_LIMITED, message, retry_after_s=_COME_BACK_S)
        self._hand_out()
        try:
            await turn
        except asyncio.CancelledError:
            if not self._queue.leave(tenant, turn):
                self._give_back(tenant)  # it had come just now
            raise

    def _give_back(self, tenant: str) -> None:
        self._queue.done(tenant)
        self._hand_out()

    def _hand_out(self) -> None:
        while (found := self._queue.next()) is not None:
            if not (turn := found[1]).done():
                turn.set_result(None)


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback)


async def unless_left(work: Coroutine[Any, Any, Result], on_leave: OnLeave) -> Result:
    """Ends the work when its client leaves, with CANCELLED; for work that may be cancelled at any await."""
    task = asyncio.get_running_loop().create_task(work)
    is_gone = False

    def leave() -> None:
        nonlocal is_gone
        is_gone = True
        task.cancel()

    on_leave(leave)
    try:
        return await task
    except asyncio.CancelledError:
        if is_gone:
            raise InflightError(ErrorKind.CANCELLED, "the client left") from None
        task.cancel()
        raise
