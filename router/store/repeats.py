"""Of what happens again and again, when to write it down: ten times, then the hundredth, the thousandth."""

from __future__ import annotations

from collections import Counter
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

_WINDOW_S = 3600.0
_EACH_OF = 10


class Repeats:
    """Counts by subject within an hour; any thread may note."""

    def __init__(self) -> None:
        self._times: Counter[Hashable] = Counter()
        self._until_s = 0.0
        self._lock = Lock()

    def note(self, subject: Hashable, now_s: float) -> int | None:
        """How often it has happened, where that is to be written down now."""
        with self._lock:
            if not self._until_s - _WINDOW_S <= now_s < self._until_s:
                self._times.clear()
                self._until_s = now_s + _WINDOW_S
            self._times[subject] += 1
            times = self._times[subject]
        return times if times <= _EACH_OF or str(times).strip("0") == "1" else None
