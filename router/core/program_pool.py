"""Programs beside the router that work for tenants in turns: they cannot hurt it, and give way to answers."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from typing import TYPE_CHECKING

from python_backend.host.priorities import give_way
from router.core.fair_pool import FairPool
from router.core.side_work import SideWork

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from python_backend.sharing.processor_share import ProcessorShare

# A question is its kind and size, then itself. An answer is whether all went well, how much time of a
# processor it took and its size, then the answer, or the reason why there is none.
QUESTION = struct.Struct(">cQ")
ANSWER = struct.Struct(">?dQ")
_READY = 1  # a byte that it writes as soon as it would end with this process, even while it stands still
_AT_ONCE = 2
_START_S = 0.4  # what a new program takes of a processor, about
_ENVIRONMENT = ("LD_LIBRARY_PATH",)  # where the interpreter may have its own libraries


class BrokenProgram(Exception):
    """It has ended without an answer."""


class ProgramPool:
    """A few programs that stay, one for each tenant at a time; whoever leaves has its own stopped.

    `program` is a script that answers questions from its standard input, one after the other. Where it
    `ends_turns`, which are short, it is left to its end instead: what it has read so far is worth keeping.
    """

    def __init__(
        self,
        what: str,
        program: Path,
        given: Sequence[str],
        waiting_each: int,
        share: ProcessorShare | None = None,
        side_work: SideWork | None = None,
        ends_turns: bool = False,
    ) -> None:
        # Isolated: what lies in the working directory, or in the environment, is not imported.
        self._command = (sys.executable, "-I", str(program), *given)
        self._pool = FairPool(what, _AT_ONCE, waiting_each, share)
        self._side_work = side_work or SideWork()
        self._ends_turns = ends_turns
        self.idle: list[Process] = []

    async def ask(
        self, tenant: str, kind: bytes, data: bytes, limit_s: float | None = None
    ) -> tuple[bool, bytes]:
        """Whether all went well, and the answer or the reason.

        Raises BrokenProgram, asyncio.TimeoutError, and RATE_LIMITED where too many of this tenant wait.
        """
        if self._ends_turns:
            return await self._pool.finish(tenant, self._ask, tenant, kind, data, limit_s)
        async with self._pool.turn(tenant):
            return await self._ask(tenant, kind, data, limit_s)

    async def _ask(self, tenant: str, kind: bytes, data: bytes, limit_s: float | None) -> tuple[bool, bytes]:
        program = self._idle_program() or await self._started()
        self._side_work.begin(program.pid)
        began_s, took_s = time.monotonic(), None
        try:
            is_well, took_s, answer = await asyncio.wait_for(_exchange(program, kind, data), limit_s)
        except asyncio.TimeoutError:  # which is an OSError, too
            raise
        except (OSError, asyncio.IncompleteReadError) as error:
            raise BrokenProgram from error
        finally:
            self._side_work.end(program.pid)
            if took_s is None:
                self._pool.charge(tenant, time.monotonic() - began_s + _START_S)
                await _end(program)
            else:
                self._pool.charge(tenant, took_s)
                self.idle.append(program)
        return is_well, answer

    async def close(self) -> None:
        await self._pool.finished()
        while self.idle:
            await _end(self.idle.pop())

    def _idle_program(self) -> Process | None:
        while self.idle:
            if (program := self.idle.pop()).returncode is None:
                return program
        return None

    async def _started(self) -> Process:
        program = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            start_new_session=True,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
        )
        assert program.stdout is not None
        try:
            give_way(program.pid)
            await program.stdout.readexactly(_READY)
        except asyncio.IncompleteReadError as error:
            await program.wait()
            raise BrokenProgram from error
        except BaseException:
            await _end(program)
            raise
        return program


async def _exchange(program: Process, kind: bytes, data: bytes) -> tuple[bool, float, bytes]:
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write(QUESTION.pack(kind, len(data)))
    program.stdin.write(data)
    await program.stdin.drain()
    is_well, took_s, size = ANSWER.unpack(await program.stdout.readexactly(ANSWER.size))
    return is_well, took_s, await program.stdout.readexactly(size)


async def _end(program: Process) -> None:
    """With what it has started, which is of the same group."""
    if program.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
    await program.wait()
