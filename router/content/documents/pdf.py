"""The text of a PDF, read by a process that cannot hurt this one."""

from __future__ import annotations

import asyncio
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from python_backend.wire.errors import ErrorKind, InflightError
from router.content.documents.limits import Unreadable

if TYPE_CHECKING:
    from router.content.documents.limits import DocumentLimits

_PROGRAM = Path(__file__).with_name("pdf_program.py")
_AT_ONCE = 2
# Nobody's limits count yet when files are read, so that the line must not grow with those who ask.
_MOST_WAITING = 16
_ENVIRONMENT = ("LD_LIBRARY_PATH",)  # where the interpreter may have its own libraries


class _Answer(msgspec.Struct, frozen=True):
    text: str | None = None
    reason: str = ""


class PdfReader:
    """A process a file, and no more than two at once; a few more wait, all others are sent away."""

    def __init__(self, limits: DocumentLimits) -> None:
        self._limits = limits
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._asking = 0

    async def read(self, data: bytes) -> str:
        if self._asking >= _AT_ONCE + _MOST_WAITING:
            raise InflightError(ErrorKind.OVERLOADED, "too many PDFs are being read; try again later")
        self._asking += 1
        try:
            async with self._turns:
                answer = await self._ask(data)
        finally:
            self._asking -= 1
        if answer.text is None:
            raise Unreadable(answer.reason)
        return answer.text

    async def _ask(self, data: bytes) -> _Answer:
        limits = self._limits
        # Isolated: what lies in the working directory, or in the environment, is not imported.
        program = await asyncio.create_subprocess_exec(
            sys.executable, "-I", str(_PROGRAM),
            str(limits.max_pdf_pages), str(limits.max_characters), str(limits.pdf_memory_bytes),
            str(math.ceil(limits.pdf_time_s)),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
        )  # fmt: skip
        try:
            written, _ = await asyncio.wait_for(program.communicate(data), limits.pdf_time_s)
        except asyncio.TimeoutError:
            return _Answer(reason=f"takes more than {limits.pdf_time_s:g} s to be read")
        finally:
            if program.returncode is None:
                program.kill()
                await program.wait()
        if program.returncode:
            return _Answer(reason="needs too much memory or time to be read")
        return msgspec.json.decode(written, type=_Answer)
