"""Work that is done again and again for as long as the router runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)


async def every(pause_s: float, look: Callable[[], Awaitable[None] | None], complaint: str) -> None:
    """Until it is cancelled. What goes wrong in one round is told, and the next one comes all the same."""
    while True:
        try:
            looking = look()
            if looking is not None:
                await looking
        except Exception:
            log.exception("%s; retrying in a moment", complaint)
        await asyncio.sleep(pause_s)
