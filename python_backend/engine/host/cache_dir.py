"""Where the engine keeps what it can make again: packed weights and compiled kernels."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path


def cache_dir() -> Path:
    """`inflight` in the user's cache folder, or in the temporary one where that cannot be written."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    directory = Path(base) / "inflight"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if os.access(directory, os.W_OK):
            return directory
    except OSError:
        pass
    return temporary_cache_dir()


@cache
def temporary_cache_dir() -> Path:
    """The one by our name if it is ours alone, else a new one: compiled kernels are run as they are found."""
    directory = Path(tempfile.gettempdir()) / f"inflight-{os.getuid()}"
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    found = directory.lstat()
    others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not others_write:
        return directory
    return Path(tempfile.mkdtemp(prefix="inflight-"))
