"""Whether an engine process hangs: it owes an answer, and none of its threads has run for seconds.

Threads that compute, compile or wait for a processor are run by the kernel whether they get on with their
tokens or not, so a long prompt or a first compilation is never taken for a hang. A process that waits for a
lock, a device or a signal for ever is not run at all.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

PATIENCE_S = 3.0
LOOK_PERIOD_S = 0.5
# Who looks later than this was away itself, for example while the whole machine was suspended.
PUNCTUAL_S = 2.0
# Looking takes a millisecond: one that said something a moment ago is not looked at.
QUIET_S = 1.0

Marks = dict[str, str]


class Stillness:
    """Asked again and again while the engine owes something and says nothing."""

    def __init__(self, marks_of: Callable[[], Marks]) -> None:
        self._marks_of = marks_of
        self._marks: Marks = {}
        self._quiet_since_s: float | None = None
        self._looked_s = 0.0
        self._still_since_s = 0.0

    def interrupt(self) -> None:
        """It was heard of, or owes nothing."""
        self._quiet_since_s = None

    def is_hung(self, now_s: float) -> bool:
        if self._quiet_since_s is None or now_s - self._looked_s > PUNCTUAL_S:
            self._quiet_since_s = self._looked_s = self._still_since_s = now_s
            self._marks = {}
        if now_s - self._quiet_since_s < QUIET_S:
            self._looked_s = now_s
            return False
        if now_s < self._looked_s + LOOK_PERIOD_S and self._marks:
            return False
        marks, before = self._marks_of(), self._marks
        self._looked_s, self._marks = now_s, marks
        if not marks or marks != before:
            self._still_since_s = now_s
        return now_s - self._still_since_s >= PATIENCE_S


def thread_marks(pid: int) -> Marks:
    """How often each thread of a process and of its children was run; empty where the kernel does not say."""
    marks: Marks = {}
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for member in (process, *process.children(recursive=True)):
            for task in Path(f"/proc/{member.pid}/task").glob("*/schedstat"):
                with suppress(OSError):  # it has ended
                    marks[str(task)] = task.read_text()
    return marks
