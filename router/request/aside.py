"""Work that would hold up the event loop: done by one thread, for which tenants take turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from python_backend.sharing.processor_share import ProcessorShare
from router.core.fair_pool import FairPool, Result

# A body up to this size is read and understood in a millisecond or two, which is no reason for a thread.
LARGE_BYTES = 32 << 10
_WAITING_EACH = 256


class Aside(FairPool):
    """One thread, since several would take turns with the event loop more often than it can bear.

    However much one tenant asks for, each other waits for one piece of work of each; beyond its share of the
    processors it rests.
    """

    def __init__(self, share: ProcessorShare | None = None) -> None:
        super().__init__("large requests to be parsed", 1, _WAITING_EACH, share)

    async def when_large(
        self, size_bytes: int, tenant: str, work: Callable[..., Result], *given: Any
    ) -> Result:
        """What a body of this size asks for: here at once where that takes no time."""
        if size_bytes <= LARGE_BYTES:
            return work(*given)
        return await self.run(tenant, work, *given)
