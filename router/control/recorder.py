"""Work that the control plane repeats for as long as the router runs, and what it writes so to the store."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from typing import TYPE_CHECKING, ClassVar

from python_backend.wire.errors import InflightError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sqlalchemy import Connection

    from router.store.database import StoreAccess

log = logging.getLogger(__name__)

_BEGAN_S = time.monotonic()  # routers on one machine do not go to the store together


async def next_beat(every_s: float) -> None:
    """All that is repeated with this period goes on at the same moment: the process wakes up once."""
    await asyncio.sleep(every_s - (time.monotonic() - _BEGAN_S) % every_s)


async def repeat(work: Callable[[], Awaitable[object]], every_s: float, failure: str) -> None:
    """Until cancelled; a failed round is logged as `failure`, and the next one is tried all the same.

    An unreachable store is no failure: those who need it report that.
    """
    while True:
        await next_beat(every_s)
        try:
            await work()
        except InflightError as error:
            log.debug("%s: %s", failure, error.message)
        except Exception:
            log.exception(failure)


class Recorder:
    """Writes what has changed in this router to rows of its own, which readers add up over all routers.

    `process` names this run of this router: rows of an earlier run stay as they are.
    """

    _what: ClassVar[str]
    _every_s: ClassVar[float] = 1.0

    def __init__(self, access: StoreAccess, process: str = "") -> None:
        self._access = access
        self.process = process or f"{os.getpid()}-{secrets.token_hex(4)}"
        self._is_unreachable = False

    async def run(self) -> None:
        """For as long as the router runs; what is left at its end is written too."""
        try:
            await repeat(self.write, self._every_s, f"{self._what} could not be written")
        finally:
            await self.write()

    async def write(self) -> None:
        """What has changed since the last write; retried the next time where the store is unreachable."""
        raise NotImplementedError

    async def _commit(self, act: Callable[[Connection], None]) -> bool:
        """Whether it is in the store; that the store is unreachable is logged once."""
        try:
            await self._access.write(act)
        except InflightError as error:
            if not self._is_unreachable:
                log.warning("%s cannot be written yet: %s", self._what, error)
            self._is_unreachable = True
        else:
            self._is_unreachable = False
        return not self._is_unreachable
