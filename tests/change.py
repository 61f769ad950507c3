"""The commit that is tested, as a number that two runs of it agree on."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(_ROOT), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""  # a copy without its history


@cache
def commit() -> str:
    return _git("rev-parse", "HEAD")


def is_changed() -> bool:
    """Return whether the tree differs from its commit."""
    return bool(_git("status", "--porcelain", "--untracked-files=no"))


def seed_of_this_change() -> int:
    """Return the seed of this commit's examples: another one for each change, the same for each run of it."""
    return int(commit()[:8] or "0", 16)
