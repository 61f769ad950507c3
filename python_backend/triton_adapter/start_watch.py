"""A model process that hangs while it starts fails instead, and leaves in the log where it hung.

Triton waits for it as long as the largest engine may take to load, and everything that is loaded later waits
behind it. So the start is interrupted, which Triton is told as the error that it is. What cannot be
interrupted, because it never comes back to the interpreter, ends with its process a little later.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

# Imports and a tokenizer take two seconds; on a machine that is far too busy twenty times as long.
IMPORT_LIMIT_S = 120.0
_S_PER_MIB = 2.0
_STUB = "triton_python_backend_stub"
_LAST_S = 10.0


def limit_s(folder: Path) -> float:
    """What a start may take that reads all files of a folder."""
    sizes = (each.stat().st_size for each in folder.glob("*.json") if each.is_file())
    return IMPORT_LIMIT_S + _S_PER_MIB * sum(sizes) / 2**20


def watch_imports() -> None:
    """Until `watched` ends or `imported` is called."""
    _watch(IMPORT_LIMIT_S)


def imported() -> None:
    """What comes now may take any time."""
    if _is_stub():
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()


@contextmanager
def watched(within_s: float) -> Iterator[None]:
    _watch(within_s)
    try:
        yield
    finally:
        imported()


def _watch(within_s: float) -> None:
    """Only in a process of Triton's: others have their own use for alarms."""

    def interrupt(number: int, frame: object) -> NoReturn:
        raise TimeoutError(f"the start of this model's process hangs: not finished after {within_s:g} s")

    if _is_stub():
        faulthandler.dump_traceback_later(within_s + _LAST_S, exit=True, file=sys.__stderr__ or sys.stderr)
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, within_s)


def _is_stub() -> bool:
    with suppress(OSError):
        return _STUB in os.readlink("/proc/self/exe")
    return False
