"""What uv would install, asked without the network where it remembers what it was told before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.debian import give_up

_ASK = (sys.executable, "-m", "uv", "pip", "install", "--dry-run", "--only-binary=:all:")
# A registry that is asked again for each package takes minutes on a bad day; wheels never change.
_AS_REMEMBERED = "--offline"


def would_install(*options: str | Path) -> str:
    """The plan, as uv says it; skips the test where no registry can be reached."""
    for more in ((_AS_REMEMBERED,), ()):
        done = subprocess.run([*_ASK, *options, *more], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return done.stderr
    if "error sending request" in done.stderr:
        give_up(f"uv reaches no registry: {done.stderr}")
    raise AssertionError(done.stderr)
