"""Has documents read within limits, by programs that cannot hurt this one and give way to it."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from python_backend.sharing.processor_share import ProcessorShare
from router.content.documents.document_program import ANSWER, DOCUMENT, Unreadable
from router.request.fair_pool import FairPool

_PROGRAM = Path(__file__).with_name("document_program.py")
_AT_ONCE = 2
_START_S = 0.4  # what a new program takes of a processor, about
_ENVIRONMENT = ("LD_LIBRARY_PATH",)  # where the interpreter may have its own libraries


@dataclass(frozen=True, slots=True)
class DocumentLimits:
    """`max_files` are those of one request, the rest holds for each file.

    How much text a model can read is another limit, its own.
    """

    max_files: int = 20
    max_bytes: int = 10 << 20
    max_characters: int = 400_000
    max_pdf_pages: int = 500
    pdf_time_s: float = 20.0
    pdf_memory_bytes: int = 512 << 20


class DocumentReader:
    """A few programs that stay, one for each tenant at a time; whoever leaves has its own stopped."""

    def __init__(
        self, what: str, waiting_each: int, limits: DocumentLimits, share: ProcessorShare | None = None
    ) -> None:
        self._limits = limits
        self._pool = FairPool(what, _AT_ONCE, waiting_each, share)
        self._idle: list[Process] = []

    async def read(self, tenant: str, kind: bytes, data: bytes) -> str:
        """The text; raises Unreadable, and RATE_LIMITED where too many of this tenant wait already."""
        async with self._pool.turn(tenant):
            return await self._read(tenant, kind, data)

    async def close(self) -> None:
        while self._idle:
            await _end(self._idle.pop())

    async def _read(self, tenant: str, kind: bytes, data: bytes) -> str:
        program = await self._program()
        began_s, took_s = time.monotonic(), None
        try:
            is_text, took_s, answer = await asyncio.wait_for(
                _ask(program, kind, data), self._limits.pdf_time_s
            )
        except asyncio.TimeoutError:
            raise Unreadable(f"takes more than {self._limits.pdf_time_s:g} s to be read") from None
        except (OSError, asyncio.IncompleteReadError):
            raise Unreadable("needs too much memory or time to be read") from None
        finally:
            if took_s is None:
                self._pool.charge(tenant, time.monotonic() - began_s + _START_S)
                await _end(program)
            else:
                self._pool.charge(tenant, took_s)
                self._idle.append(program)
        if not is_text:
            raise Unreadable(answer)
        return answer

    async def _program(self) -> Process:
        while self._idle:
            if (program := self._idle.pop()).returncode is None:
                return program
        limits = self._limits
        # Isolated: what lies in the working directory, or in the environment, is not imported.
        return await asyncio.create_subprocess_exec(
            sys.executable, "-I", str(_PROGRAM),
            str(limits.max_pdf_pages), str(limits.max_characters), str(limits.pdf_memory_bytes),
            str(math.ceil(limits.pdf_time_s)),
            stdin=PIPE, stdout=PIPE, stderr=DEVNULL, start_new_session=True,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
        )  # fmt: skip


async def _ask(program: Process, kind: bytes, data: bytes) -> tuple[bool, float, str]:
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write(DOCUMENT.pack(kind, len(data)))
    program.stdin.write(data)
    await program.stdin.drain()
    is_text, took_s, size = ANSWER.unpack(await program.stdout.readexactly(ANSWER.size))
    return is_text, took_s, (await program.stdout.readexactly(size)).decode()


async def _end(program: Process) -> None:
    """With the child that reads for it, which is of the same group."""
    if program.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
    await program.wait()
