"""Turns Ctrl-C, SIGTERM and SIGHUP into a request to stop, and a repeated one into a request to hurry."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Counts what came in; while `interrupting`, the first one also raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.received: list[signal.Signals] = []
        self._interrupting = False

    @property
    def stop_requested(self) -> bool:
        return bool(self.received)

    @property
    def hurry_requested(self) -> bool:
        return len(self.received) > 1

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
        """For work that does not look at `stop_requested` by itself."""
        self._interrupting = True
        try:
            yield
        finally:
            self._interrupting = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received.append(signal.Signals(number))
        if self._interrupting and not self.hurry_requested:
            raise KeyboardInterrupt
