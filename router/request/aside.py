"""Work that would hold up the event loop: done by one thread, for which tenants take turns."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")
# A body up to this size is read and understood in a millisecond or two, which is no reason for a thread.
LARGE_BYTES = 32 << 10


class Aside:
    """One thread, since several would take turns with the event loop more often than it can bear."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="aside")
        self._is_busy = False
        # By tenant; the first of them is next, and goes to the end after that.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def run(self, tenant: str, work: Callable[..., Result], *args: object) -> Result:
        """However much one tenant asks for, each other waits for one piece of work of each."""
        loop = asyncio.get_running_loop()
        if self._is_busy:
            turn = loop.create_future()
            self._waiting.setdefault(tenant, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # it came in the same moment
                    self._pass_on()
                raise
        self._is_busy = True
        try:
            return await loop.run_in_executor(self._thread, partial(work, *args))
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            tenant = next(iter(self._waiting))
            turns = self._waiting.pop(tenant)
            turn = turns.popleft()
            if turns:
                self._waiting[tenant] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._is_busy = False

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
