"""The thread with an event loop in which TensorRT-LLM is asked; what it tells goes into a queue."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from python_backend.engine.runtimes.trtllm.failures import Unreadable
from python_backend.engine.runtimes.trtllm.iterations import Iterations
from python_backend.engine.runtimes.trtllm.news import News, Reader

_log = logging.getLogger("inflight.engine")

# It passes on what it notes of its iterations five times a second, and a reader who once waited so long in
# vain hears nothing more until it is asked something again.
_STATISTICS_PATIENCE_S = 2.0
_CLOSING_S = 1.0


@dataclass(slots=True)
class Asked:
    """One sequence that TensorRT-LLM computes; `arguments` are those of `generate_async`."""

    arguments: dict[str, Any]
    result: Any = None
    is_aborted: bool = False


@dataclass(frozen=True, slots=True)
class Told:
    """About one of those asked: news, or the error that ended it."""

    asked: Asked
    news: News
    error: Exception | None = None


class Conversation:
    """Every `ask` is followed by news up to the last, or by an error; an abort only hastens the end.

    Unless TensorRT-LLM fell silent: then `failure` says so.
    """

    failure: str | None = None

    def __init__(self, llm: Any, stats_period_s: float) -> None:
        self.iterations = Iterations()
        self._llm = llm
        self._stats_period_s = stats_period_s
        self._told: SimpleQueue[Told] = SimpleQueue()
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself would let go of them
        self._running: dict[int, Asked] = {}
        self._listens = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tensorrt-llm", daemon=True)
        self._thread.start()

    def ask(self, arguments: dict[str, Any]) -> Asked:
        asked = Asked(arguments)
        self._loop.call_soon_threadsafe(self._begin, asked)
        return asked

    def abort(self, asked: Asked) -> None:
        self._loop.call_soon_threadsafe(self._abort, asked)

    def hear(self, patience_s: float) -> list[Told]:
        """All there is; waits for the first so long."""
        told: list[Told] = []
        try:
            told.append(self._told.get(timeout=patience_s) if patience_s > 0 else self._told.get_nowait())
            while True:
                told.append(self._told.get_nowait())
        except Empty:
            return told

    def close(self) -> None:
        """Aborts what runs, for TensorRT-LLM computes to their ends before it shuts down; nothing is told."""
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
            self._tasks.add(self._loop.create_task(self._hear_statistics()))
            self._tasks.add(self._loop.create_task(self._watch()))
        task = self._loop.create_task(self._follow(asked))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _abort(self, asked: Asked) -> None:
        asked.is_aborted = True
        if asked.result is None or asked.result.finished:
            return
        try:
            asked.result.abort()
        except Exception as error:  # there is nobody left to tell it to
            _log.warning("TensorRT-LLM could not be told of an abort: %s", error)

    async def _end(self) -> None:
        for asked in self._running.values():
            self._abort(asked)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loop.stop()

    async def _follow(self, asked: Asked) -> None:
        if asked.is_aborted:
            self._told.put(Told(asked, News(finish_reason="cancelled", is_last=True)))
            return
        reader, is_over = Reader(), False
        self._running[id(asked)] = asked
        try:
            asked.result = self._llm.generate_async(**asked.arguments)
            async for _ in asked.result:
                news = _read(reader, asked.result)
                is_over = news.is_last
                self._told.put(Told(asked, news))
            if not is_over:
                news = _read(reader, asked.result)
                news.is_last = True
                self._told.put(Told(asked, news))
        except Exception as error:
            if isinstance(error, Unreadable):
                self._abort(asked)
            self._told.put(Told(asked, News(is_last=True), error))
        finally:
            self._running.pop(id(asked), None)

    async def _hear_statistics(self) -> None:
        while True:
            try:
                patience_s = max(self._stats_period_s, _STATISTICS_PATIENCE_S)
                async for told in self._llm.get_stats_async(timeout=patience_s):
                    self.iterations.take(json.loads(told) if isinstance(told, str) else told)
            except Exception as error:  # gauges alone depend on it
                _log.debug("TensorRT-LLM told nothing of its iterations: %s", error)
            await asyncio.sleep(self._stats_period_s)

    async def _watch(self) -> None:
        """Who was asked and died tells nothing more, so that it has to be looked at."""
        check = getattr(self._llm, "_check_health", None)  # NVIDIA's own server asks it the same
        while check is not None and self.failure is None:
            await asyncio.sleep(self._stats_period_s)
            with suppress(Exception):
                if not check():
                    self.failure = "TensorRT-LLM says of itself that it cannot go on"


def _read(reader: Reader, result: Any) -> News:
    try:
        return reader.read(result)
    except Exception as error:
        _log.exception("what TensorRT-LLM told could not be read")
        raise Unreadable(f"what it told could not be read: {type(error).__name__}: {error}") from error
