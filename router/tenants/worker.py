"""The one thread that talks to the store: the event loop submits work and awaits its result."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

log = logging.getLogger(__name__)
Result = TypeVar("Result")


@dataclass(slots=True)
class Chore:
    """Something done again and again; one that fails waits longer, and is logged once until it works."""

    name: str
    every_s: float
    do: Callable[[], object]
    due_s: float = 0.0
    failures: int = 0

    def run(self, now_s: float) -> None:
        try:
            self.do()
        except Exception as error:
            if not self.failures:
                log.error("%s failed and will be retried: %s", self.name, error)
            self.failures += 1
        else:
            if self.failures:
                log.info("%s works again after %d failures", self.name, self.failures)
            self.failures = 0
        self.due_s = now_s + self.every_s * min(2**self.failures, 8)


class Worker:
    """Runs calls in the order they come, and chores between them."""

    def __init__(self, chores: Sequence[Chore]) -> None:
        self._chores = chores
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="tenancy-store", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_well(self) -> bool:
        """False while any chore fails: the store is unreachable."""
        return not any(chore.failures for chore in self._chores)

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Never waits; `asyncio.wrap_future` makes the answer awaitable."""
        future: Future[Result] = Future()
        self._calls.put((future, call))
        return future

    def stop(self, timeout_s: float) -> None:
        """Ends when all calls made before are done."""
        self._calls.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            wait_s = min((chore.due_s for chore in self._chores), default=time.monotonic() + 1)
            try:
                item = self._calls.get(timeout=max(wait_s - time.monotonic(), 0.001))
            except queue.Empty:
                pass
            else:
                if item is None:
                    return
                _answer(*item)
            for chore in self._chores:
                if time.monotonic() >= chore.due_s:
                    chore.run(time.monotonic())


def _answer(future: Future[Any], call: Callable[[], Any]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)
