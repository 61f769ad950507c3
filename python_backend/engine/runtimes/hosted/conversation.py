"""The thread with an event loop in which a package is asked; what it tells goes into a queue."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from python_backend.engine.runtimes.hosted.host import Asked, Host, Unreadable
from python_backend.engine.runtimes.hosted.iterations import Iterations
from python_backend.engine.runtimes.hosted.news import News

_log = logging.getLogger("inflight.engine")

_CLOSING_S = 1.0


@dataclass(frozen=True, slots=True)
class Told:
    """About one of those asked: news, or the error that ended it."""

    asked: Asked
    news: News
    error: Exception | None = None


class Conversation:
    """Every `ask` is followed by news up to the last, or by an error; an abort only hastens the end.

    Unless the package fell silent: then `failure` says so. `silence_s` is how long it may say nothing at all
    while something runs: each of its iterations counts as a word.
    """

    failure: str | None = None

    def __init__(
        self,
        host: Host,
        stats_period_s: float,
        silence_s: float,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.iterations = Iterations()
        self._host = host
        self._stats_period_s = stats_period_s
        self._silence_s = silence_s
        self._heard_s = time.monotonic()
        self._told: SimpleQueue[list[Told]] = SimpleQueue()
        self._untold: list[Told] = []  # what came in this round of the loop
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself would let go of them
        self._running: dict[int, Asked] = {}
        self._listens = False
        self._loop = loop or asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=host.title, daemon=True)
        self._thread.start()

    def ask(self, arguments: dict[str, Any]) -> Asked:
        asked = Asked(arguments)
        self._loop.call_soon_threadsafe(self._begin, asked)
        return asked

    def abort(self, asked: Asked) -> None:
        self._loop.call_soon_threadsafe(self._abort_later, asked)

    def drop_adapter(self, name: str) -> None:
        """What is asked later finds it gone."""
        self._loop.call_soon_threadsafe(lambda: self._keep(self._drop_adapter(name)))

    def hear(self, patience_s: float) -> list[Told]:
        """All there is; waits for the first so long."""
        told: list[Told] = []
        try:
            told += self._told.get(timeout=patience_s) if patience_s > 0 else self._told.get_nowait()
            while True:
                told += self._told.get_nowait()
        except Empty:
            return told

    def close(self) -> None:
        """Aborts what runs, for a package may compute to their ends before it shuts down; nothing is told."""
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        self._thread.join(_CLOSING_S)
        if not self._thread.is_alive():
            self._loop.close()

    # -- in the loop's thread -------------------------------------------------------------------------

    def _begin(self, asked: Asked) -> None:
        if not self._listens:  # before it was asked something it has nothing to tell
            self._listens = True
            self._keep(self._host.listen(self.iterations, self._stats_period_s))
            self._keep(self._watch())
        if not self._running:
            self._heard_s = time.monotonic()
        self._keep(self._follow(asked))

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _tell(self, told: Told) -> None:
        """All that one round of the loop brings goes over at once: whoever hears it is woken once."""
        if not self._untold:
            self._loop.call_soon(self._pass_on)
        self._untold.append(told)
        self._heard_s = time.monotonic()

    def _pass_on(self) -> None:
        told, self._untold = self._untold, []
        self._told.put(told)

    def _abort_later(self, asked: Asked) -> None:
        self._keep(self._abort(asked))

    async def _abort(self, asked: Asked) -> None:
        asked.is_aborted = True
        if asked.handle is None:
            return
        try:
            await self._host.abort(asked)
        except Exception as error:  # there is nobody left to tell it to
            _log.warning("%s did not accept an abort: %s", self._host.title, error)

    async def _drop_adapter(self, name: str) -> None:
        try:
            await self._host.drop_adapter(name)
        except Exception as error:  # it keeps some memory, and goes on
            _log.warning("%s did not unload adapter %s: %s", self._host.title, name, error)

    async def _end(self) -> None:
        for asked in list(self._running.values()):
            await self._abort(asked)
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loop.stop()

    async def _follow(self, asked: Asked) -> None:
        if asked.is_aborted:
            self._tell(Told(asked, News(finish_reason="cancelled", is_last=True)))
            return
        is_over = False
        self._running[id(asked)] = asked
        try:
            async for news in self._host.follow(asked):
                is_over = news.is_last
                self._tell(Told(asked, news))
            if not is_over:
                self._tell(Told(asked, News(is_last=True)))
        except Exception as error:
            if isinstance(error, Unreadable):
                await self._abort(asked)
            self._tell(Told(asked, News(is_last=True), error))
        finally:
            self._running.pop(id(asked), None)

    async def _watch(self) -> None:
        """Who was asked and died tells nothing more, so that it has to be looked at."""
        counted = self.iterations.count
        while self.failure is None:
            await asyncio.sleep(self._stats_period_s)
            with suppress(Exception):
                self.failure = await self._host.failure()
            if not self._running or self.iterations.count != counted:
                counted, self._heard_s = self.iterations.count, time.monotonic()
            elif time.monotonic() - self._heard_s >= self._silence_s:
                self.failure = f"{self._host.title} has not responded for {self._silence_s:.0f} s"
