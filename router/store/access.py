"""The store for code on the event loop: each transaction runs in a thread."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from python_backend.wire.errors import ErrorKind, InflightError
from router.store.database import StoreAway

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from sqlalchemy import Connection

    from router.store.database import Store

Result = TypeVar("Result")


class StoreAccess:
    """Keys, limits and usage have a thread of their own, which nothing here can block."""

    def __init__(self, store: Store, threads: int = 4) -> None:
        self._store = store
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="store")

    @property
    def store(self) -> Store:
        return self._store

    async def read(self, act: Callable[[Connection], Result]) -> Result:
        """All that `act` reads is of one moment."""
        return await self._run(self._store.read, act)

    async def write(self, act: Callable[[Connection], Result]) -> Result:
        """Committed when it returns, or nothing has changed."""
        return await self._run(self._store.begin, act)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)

    async def _run(
        self,
        transaction: Callable[[], AbstractContextManager[Connection]],
        act: Callable[[Connection], Result],
    ) -> Result:
        def in_transaction() -> Result:
            with transaction() as connection:
                return act(connection)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, in_transaction)
        except StoreAway as error:
            raise InflightError(
                ErrorKind.OVERLOADED, "the store of this server cannot be reached at the moment"
            ) from error
