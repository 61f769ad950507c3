"""A Triton that lives and answers nobody: one that fails on a fault in its memory may hang for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_PERIOD_S = 5.0
PATIENCE_S = 60.0


class SilenceWatch:
    """Asks now and then; one that is only slow answers some of the time."""

    def __init__(self, answers: Callable[[], bool]) -> None:
        self._answers = answers
        self._next_look_s = 0.0
        self._unheard_since_s: float | None = None

    def begin(self) -> None:
        """It has just become ready."""
        self._unheard_since_s = None

    def find_fault(self, now_s: float) -> str | None:
        if now_s < self._next_look_s:
            return None
        self._next_look_s = now_s + LOOK_PERIOD_S
        if self._answers():
            self._unheard_since_s = None
            return None
        if self._unheard_since_s is None:
            self._unheard_since_s = now_s
        unheard_s = now_s - self._unheard_since_s
        return f"it has not answered for {unheard_s:.0f} s" if unheard_s >= PATIENCE_S else None
