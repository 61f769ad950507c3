"""Turns Ctrl-C, SIGTERM and SIGHUP into a request to stop, and a repeated one into a request to hurry."""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# One stop can arrive twice: make hands SIGTERM on to a child that the sender has told as well.
SAME_STOP_S = 0.5


class StopSignals:
    """Counts what came in; for what is `interrupting`, the first one is a KeyboardInterrupt too."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.received: list[signal.Signals] = []
        self.hurry_requested = False
        self._clock = clock
        self._first_s = 0.0
        self._interrupting = False

    @property
    def stop_requested(self) -> bool:
        return bool(self.received)

    @contextmanager
    def handled(self) -> Iterator[None]:
        # Under nohup the terminal may go away; SIGINT counts even where a shell's `&` has switched it off.
        wanted = [n for n in SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
        previous = {number: signal.signal(number, self._receive) for number in wanted}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """For work that does not look at `stop_requested` by itself; it does not begin after a stop."""
        self._interrupting = True
        try:
            if self.stop_requested:
                raise KeyboardInterrupt
            yield
        finally:
            self._interrupting = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received.append(signal.Signals(number))
        if len(self.received) > 1:
            self.hurry_requested |= self._clock() - self._first_s >= SAME_STOP_S
            return
        self._first_s = self._clock()
        if self._interrupting:
            raise KeyboardInterrupt
