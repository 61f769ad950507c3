"""Directories that nobody else can enter, also where an earlier version has let everybody."""

from __future__ import annotations

import os
from pathlib import Path

# What tells a directory of ours from one that happens to be named in the settings.
_MARKS = ("store.db", "run", "spool", "pepper")


def make_private(directory: Path) -> None:
    """Creates it for its owner alone; one that we made earlier is closed, one of the user's own is left."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.stat()
    is_open = found.st_mode & 0o077 and found.st_uid == os.getuid()
    if is_open and any((directory / mark).exists() for mark in _MARKS):
        directory.chmod(0o700)
