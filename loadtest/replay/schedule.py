"""Starts tasks on schedule, whatever became of the earlier ones (open loop)."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol, TypeVar


class Timed(Protocol):
    @property
    def at_s(self) -> float:
        """Seconds after the start."""


T = TypeVar("T", bound=Timed)
Act = Callable[[], Coroutine[Any, Any, None]]


async def keep_time(
    plan: Iterable[T], prepare: Callable[[T], Act], start_s: float, gives_up_s: float = math.inf
) -> None:
    """`start_s` is on the clock of `time.perf_counter`; `prepare` is asked before it is time.

    What is not done `gives_up_s` after the start is cancelled, and all of it when this is.
    """
    tasks: list[asyncio.Task[None]] = []
    try:
        for each in plan:
            act = prepare(each)
            await asyncio.sleep(max(0.0, start_s + each.at_s - time.perf_counter()))
            tasks.append(asyncio.create_task(act()))
        if tasks:
            left_s = max(0.0, start_s + gives_up_s - time.perf_counter())
            await asyncio.wait(tasks, timeout=None if math.isinf(left_s) else left_s)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
