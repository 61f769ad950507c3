"""A folder in memory, where the machine has room there: nothing in it waits for a disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 1 << 30


def place() -> str:
    """Where such folders are made; where memory has no room for them, those of all other tests."""
    try:
        state = os.statvfs(_MEMORY)
    except OSError:
        return tempfile.gettempdir()
    has_room = os.access(_MEMORY, os.W_OK) and state.f_bavail * state.f_frsize > _ROOM_BYTES
    return str(_MEMORY) if has_room else tempfile.gettempdir()


@contextmanager
def folder_in_memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(
        prefix="inflight-test-", dir=place(), ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)
