"""Where the engine keeps what it can make again: packed weights and compiled kernels."""

from __future__ import annotations

import os
import tempfile
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
    directory = Path(tempfile.gettempdir()) / f"inflight-{os.getuid()}"
    directory.mkdir(parents=True, exist_ok=True)
    return directory
