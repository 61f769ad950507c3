"""A release whose model raises when Triton loads it."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.commands.chaos.arena import Arena

_NAME = "damaged"
_CONFIG = """
backend: "python"
max_batch_size: 8
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
_MODEL = """
class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("this model does not load")
"""
_LIMIT_S = 90.0


class NotNoticed(Exception):
    """The release is not said to have failed."""


async def want_damaged_release(arena: Arena) -> str:
    """Adds one, asks for it to be loaded, which must fail, and takes it back."""
    source = arena.folder / _NAME
    (source / "1").mkdir(parents=True, exist_ok=True)
    (source / "config.pbtxt").write_text(_CONFIG)
    (source / "1" / "model.py").write_text(_MODEL)
    _, said = await _release(arena, "add", _NAME, str(source))
    name = next((word for word in said.split() if word.startswith(f"{_NAME}@")), f"{_NAME}@1").strip(".,:")
    status, said = await _release(arena, "load", name)
    if status == 0 or "does not load" not in said:
        raise NotNoticed(f"a release that cannot be loaded was not refused (status {status}): {said[-300:]}")
    await _release(arena, "unload", name)
    return name


async def _release(arena: Arena, *words: str) -> tuple[int, str]:
    """`inflight release ...`, as an operator would."""
    command = [sys.executable, "-m", "launcher", "release", *words, "--config", str(arena.config)]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), _LIMIT_S)
    except asyncio.TimeoutError:
        process.kill()
        raise NotNoticed(f"`release {' '.join(words)}` has not returned after {_LIMIT_S:g} s") from None
    return process.returncode or 0, said.decode(errors="replace")
