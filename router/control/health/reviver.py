"""Reloads Triton models whose processes died or froze: at once, then with backoff."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from router.control.health.vital_signs import Revivals
from router.triton.control import ControlError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    FindFault = Callable[[str], Awaitable[str | None]]

log = logging.getLogger(__name__)


class Control(Protocol):
    """What is used of a TritonControl."""

    @property
    def can_control(self) -> bool: ...

    async def revive(self, model: str) -> None:
        """Raises ControlError."""


class Patient(Protocol):
    """What is used of a Watch."""

    name: str
    release: str
    broken: set[str]

    @property
    def control(self) -> Control: ...

    def revival_begins(self) -> None: ...

    def revival_failed(self) -> None: ...

    def revived(self, models: Sequence[str]) -> None:
        """These have been loaded again."""


async def no_fault(release: str) -> str | None:
    return None


@dataclass
class _Case:
    revivals: dict[str, Revivals] = field(default_factory=lambda: defaultdict(Revivals))
    task: asyncio.Task[None] | None = None


class Reviver:
    """Acts only while `can_revive` says so: of several routers one is in control.

    `find_fault` says what is wrong with the files of a release: what was changed is not loaded again.
    """

    def __init__(
        self,
        can_revive: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        find_fault: FindFault = no_fault,
    ) -> None:
        self._can_revive = can_revive
        self._clock = clock
        self._find_fault = find_fault
        self._cases: dict[str, _Case] = {}

    def attend(self, patient: Patient) -> None:
        """Called again and again, as long as anything is broken."""
        case = self._cases.setdefault(patient.name, _Case())
        is_busy = case.task is not None and not case.task.done()
        if is_busy or not (patient.broken and patient.control.can_control and self._can_revive()):
            return
        now_s, revivals = self._clock(), case.revivals
        due = [model for model in sorted(patient.broken) if now_s >= revivals[model].due_s]
        revivals.update({model: revivals[model].after_attempt(now_s) for model in due})
        if due:
            case.task = asyncio.get_running_loop().create_task(self._revive(patient, due, case.revivals))

    async def close(self) -> None:
        tasks = [case.task for case in self._cases.values() if case.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _revive(
        self, patient: Patient, models: Sequence[str], revivals: Mapping[str, Revivals]
    ) -> None:
        patient.revival_begins()
        try:
            for model in models:
                began_s = self._clock()
                if (fault := await self._find_fault(patient.release)) is not None:
                    raise ControlError(f"the release has changed since it was added: {fault}")
                await patient.control.revive(model)
                log.warning("%s: revived %s in %.1f s", patient.name, model, self._clock() - began_s)
        except BaseException as error:
            patient.revival_failed()
            if not isinstance(error, ControlError):
                raise
            attempt, pause_s = revivals[model].attempts, max(0.0, revivals[model].due_s - self._clock())
            log.error(
                "%s: cannot revive %s, attempt %d; next attempt in %.0f s: %s",
                *(patient.name, model, attempt, pause_s, error),
            )
        else:
            patient.revived(models)
