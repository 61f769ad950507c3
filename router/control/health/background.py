"""Background tasks that end with their owner."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine


class Background:
    """At most `most` tasks of one name: with one more the oldest is given up."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._tasks: defaultdict[str, list[asyncio.Task[None]]] = defaultdict(list)

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        tasks = self._tasks[name]
        tasks[:] = [task for task in tasks if not task.done()]
        if len(tasks) >= self._most:
            tasks.pop(0).cancel()
        tasks.append(asyncio.get_running_loop().create_task(work))

    async def close(self) -> None:
        tasks = [task for named in self._tasks.values() for task in named]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
