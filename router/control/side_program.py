"""A program beside the router: of the lowest priority, so that requests do not feel it, and ended in time."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Sequence

_LOWEST_PRIORITY = 19
_GRACE_S = 10.0
# Where our packages are: programs find them as this one did, and no others in the directory they run in.
_ROOT = str(Path(__file__).parents[2])


class SideProgram:
    """One run. It leads a group of its own, so that whatever it starts ends with it."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, command: Sequence[str], *, is_asked: bool = False) -> SideProgram:
        """One that `is_asked` reads stdin, and its complaints are apart; else all it says is one text."""
        quiet = {"PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "COLUMNS": "200"}
        path = os.pathsep.join(filter(None, [_ROOT, os.environ.get("PYTHONPATH", "")]))
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=PIPE if is_asked else DEVNULL,
            stdout=PIPE,
            stderr=PIPE if is_asked else STDOUT,
            cwd="/",
            env={**os.environ, **quiet, "PYTHONPATH": path},
            start_new_session=True,
        )
        with suppress(OSError):  # it may be over already
            os.setpriority(os.PRIO_PROCESS, process.pid, _LOWEST_PRIORITY)
        return cls(process)

    async def ask(self, question: bytes) -> tuple[int, bytes, str]:
        """Its exit status, its answer and its complaint."""
        told, complaint = await self._process.communicate(question)
        return await self._process.wait(), told, complaint.decode(errors="replace").strip()

    async def next_line(self) -> str | None:
        """What it says next; None when it has said all."""
        assert self._process.stdout is not None
        try:
            line = await self._process.stdout.readline()
        except ValueError:  # one without an end
            return ""
        return line.decode(errors="replace").rstrip() if line else None

    async def wait(self) -> int:
        return await self._process.wait()

    async def stop(self) -> None:
        """Gives it time to clean up after itself."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._process.wait(), _GRACE_S)
        self.kill()

    def kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
