"""Measures how long the event loop keeps others waiting, and logs where it is when that is too long."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router.telemetry.values import Observations

log = logging.getLogger(__name__)

_EVERY_S = 0.05
_TOO_LONG_S = 0.5
_FRAMES = 8


class LoopWatch:
    """A thread asks the event loop for a sign of life, again and again, and notes how long it took to come.

    From outside: a loop that is held up cannot tell.
    """

    def __init__(
        self, stalls: Observations, every_s: float = _EVERY_S, too_long_s: float = _TOO_LONG_S
    ) -> None:
        self._stalls = stalls
        self._every_s = every_s
        self._too_long_s = too_long_s
        self._done = threading.Event()

    def start(self) -> None:
        """Watches the loop that runs here, until `stop`."""
        loop, thread_id = asyncio.get_running_loop(), threading.get_ident()
        threading.Thread(target=self._watch, args=(loop, thread_id), daemon=True, name="loop-watch").start()

    def stop(self) -> None:
        self._done.set()

    def _watch(self, loop: asyncio.AbstractEventLoop, thread_id: int) -> None:
        answered = threading.Lock()  # released by the loop: a single call, and none of Python's
        answered.acquire()
        while not self._done.wait(self._every_s):
            asked_s = time.perf_counter()
            try:
                loop.call_soon_threadsafe(answered.release)
            except RuntimeError:  # it is closed
                return
            if not answered.acquire(timeout=self._too_long_s):
                self._tell(thread_id)
                while not answered.acquire(timeout=self._every_s):
                    if self._done.is_set():
                        return
            self._stalls.observe(time.perf_counter() - asked_s)

    def _tell(self, thread_id: int) -> None:
        frame = sys._current_frames().get(thread_id)
        where = traceback.extract_stack(frame)[-_FRAMES:] if frame is not None else []
        calls = " > ".join(f"{each.filename.rpartition('/')[2]}:{each.lineno} {each.name}" for each in where)
        log.warning("the event loop has been blocked for %g s, at %s", self._too_long_s, calls)
