"""Releases that are being added by this router's machine, by the same command that an operator would type."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from router.control.side_program import SideProgram

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.control.releases.sources import ReleaseSource

log = logging.getLogger(__name__)

_KEPT = 20
_LINES = 12
_MOST_CHARS = 400
_COMPLAINT = "inflight: "
_ADDED = re.compile(r"^(\S+@\d+) is added\.$")
# What a terminal would do with the rest of a line is nothing for a page.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


class AdditionState(str, Enum):
    RUNNING = "running"
    ADDED = "added"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class AdditionOrder:
    """What is to be added; `parameters` are the engine's."""

    model: str
    source: ReleaseSource
    version: int | None = None
    parameters: dict[str, str] = field(default_factory=dict)
    notes: str = ""

    def words(self) -> list[str]:
        """After `inflight release add`. Options come with their values in one word: no value is an option."""
        given = [f"--set={name}={value}" for name, value in self.parameters.items()]
        if self.version is not None:
            given.append(f"--version={self.version}")
        return [*given, f"--notes={self.notes}", "--", self.model, str(self.source.path)]


@dataclass
class Addition:
    """`said` is what the command says, without where things lie."""

    id: str
    order: AdditionOrder
    began_s: float
    state: AdditionState = AdditionState.RUNNING
    release: str = ""
    reason: str = ""
    ended_s: float | None = None
    said: deque[str] = field(default_factory=lambda: deque(maxlen=_LINES))

    def hear(self, line: str) -> None:
        path = str(self.order.source.path)
        line = _CONTROL.sub("", line).replace(path, self.order.source.name)[:_MOST_CHARS].strip()
        if not line:
            return
        self.said.append(line)
        if (added := _ADDED.match(line)) is not None:
            self.release = added.group(1)
        elif line.startswith(_COMPLAINT):
            self.reason = line.removeprefix(_COMPLAINT)

    def end(self, status: int, is_stopped: bool, now_s: float) -> None:
        self.ended_s = now_s
        if status == 0 and self.release:
            self.state = AdditionState.ADDED
        elif is_stopped:
            self.state, self.reason = AdditionState.STOPPED, "stopped: nothing was added"
        else:
            self.state = AdditionState.FAILED
            self.reason = self.reason or (
                self.said[-1] if self.said else f"the command ended with status {status}"
            )


class CannotAdd(Exception):
    """Not by this router, or not now; the message says why."""


class Additions:
    """One at a time. `command` is `inflight release add` with this installation's options; none, and the
    router's machine cannot add any. `folders` are where it may find them."""

    def __init__(self, command: Sequence[str] = (), folders: Sequence[str] = ()) -> None:
        self._command = tuple(command)
        self.folders = tuple(folders)
        self._known: deque[Addition] = deque(maxlen=_KEPT)
        self._task: asyncio.Task[None] | None = None
        self._program: SideProgram | None = None
        self._is_stopped = False

    @property
    def is_possible(self) -> bool:
        return bool(self._command)

    def newest(self) -> list[Addition]:
        return list(self._known)[::-1]

    def find(self, name: str) -> Addition | None:
        return next((each for each in self._known if each.id == name), None)

    def refuse_if_not_now(self) -> None:
        if not self._command:
            raise CannotAdd(
                "this router cannot access the files of releases: use `inflight release add` where they are"
            )
        if self._task is not None and not self._task.done():
            raise CannotAdd("a release is being added already: wait for it, or stop it")

    def begin(self, order: AdditionOrder) -> Addition:
        self.refuse_if_not_now()
        addition = Addition(f"add-{secrets.token_hex(6)}", order, time.time())
        self._known.append(addition)
        self._is_stopped = False
        self._task = asyncio.get_running_loop().create_task(self._run(addition))
        return addition

    async def stop(self, addition: Addition) -> None:
        """Returns when it is over; what is over already stays as it is."""
        if addition.state is not AdditionState.RUNNING or self._task is None:
            return
        self._is_stopped = True
        if self._program is not None:
            await self._program.stop()
        await asyncio.wait((self._task,))

    async def close(self) -> None:
        for addition in self._known:
            await self.stop(addition)

    async def _run(self, addition: Addition) -> None:
        status = -1
        try:
            self._program = await SideProgram.start([*self._command, *addition.order.words()])
            if self._is_stopped:
                await self._program.stop()
            while (line := await self._program.next_line()) is not None:
                addition.hear(line)
            status = await self._program.wait()
        except OSError as error:
            log.exception("a release cannot be added")
            addition.reason = f"the command cannot be run: {error.strerror}"
        finally:
            if self._program is not None:
                self._program.kill()
            self._program = None
            addition.end(status, self._is_stopped, time.time())
