"""The types in the console's comments, checked by TypeScript, which npm brings to the cache once."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from router.console.pages import STATIC

TYPESCRIPT = "7.0.2"


@pytest.fixture(scope="module")
def compiler() -> Path:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm, which brings TypeScript, is not on this machine")
    below = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(below) / "inflight" / f"typescript-{TYPESCRIPT}"
    program = folder / "node_modules" / ".bin" / "tsc"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--silent", "--no-audit", "--no-fund", f"typescript@{TYPESCRIPT}"]
        fetched = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=120, check=False
        )
        if fetched.returncode != 0:
            pytest.skip(f"TypeScript cannot be fetched here: {fetched.stderr[-300:]}")
    return program


def test_the_consoles_modules_keep_the_types_in_their_comments(compiler: Path) -> None:
    checked = subprocess.run(
        [str(compiler), "-p", str(STATIC.parent / "tsconfig.json")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout
