"""Things begun at their moments, whatever became of the earlier ones."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol, TypeVar


class Timed(Protocol):
    @property
    def at_s(self) -> float:
        """Since all began."""


T = TypeVar("T", bound=Timed)
Act = Callable[[], Coroutine[Any, Any, None]]


async def keep_time(
    plan: Iterable[T], prepare: Callable[[T], Act], start_s: float, gives_up_s: float = math.inf
) -> None:
    """`start_s` is on the clock of `time.perf_counter`; `prepare` is asked before it is time.

    What is not done `gives_up_s` after the start is cancelled, and all of it when this is.
    """
    under_way: list[asyncio.Task[None]] = []
    try:
        for each in plan:
            act = prepare(each)
            await asyncio.sleep(max(0.0, start_s + each.at_s - time.perf_counter()))
            under_way.append(asyncio.create_task(act()))
        if under_way:
            left_s = max(0.0, start_s + gives_up_s - time.perf_counter())
            await asyncio.wait(under_way, timeout=None if math.isinf(left_s) else left_s)
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
