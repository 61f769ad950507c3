"""Programs that work beside answers, and stand still while answers are made: not for long at a time.

On a small machine the engine computes with every core, so whatever else is computed takes from its steps. In
between there are moments in which it waits for requests. Programs work in those; where there are none, they
work for a fifth of the time, so that they come to an end.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

_MOST_STILL_S = 0.2
_SPELL_S = 0.05


class SideWork:
    """Looked after on the event loop. Programs are the leaders of their process groups.

    `is_answering`: some answer is being made now. Whoever changes it has it looked at, if there are programs.
    """

    def __init__(self, stands_still: bool = True) -> None:
        self._stands_still = stands_still
        self.programs: set[int] = set()
        self.is_answering = False
        self._is_still = False
        self._is_spell = False
        self._spell_due: asyncio.TimerHandle | None = None

    def begin(self, program: int) -> None:
        self.programs.add(program)
        if self._is_still:
            _tell(program, signal.SIGSTOP)
        self.look()

    def end(self, program: int) -> None:
        """It has its answer, or is to be ended."""
        self.programs.discard(program)
        if self._is_still:
            _tell(program, signal.SIGCONT)
        self.look()

    def look(self) -> None:
        is_still = self._stands_still and self.is_answering and bool(self.programs) and not self._is_spell
        if is_still == self._is_still:
            return
        self._is_still = is_still
        for program in self.programs:
            _tell(program, signal.SIGSTOP if is_still else signal.SIGCONT)
        # Moments in between do not put it off: there may be many, all too short to get anywhere.
        if is_still and self._spell_due is None:
            loop = asyncio.get_running_loop()
            self._spell_due = loop.call_later(_MOST_STILL_S, self._begin_spell)

    def _begin_spell(self) -> None:
        self._spell_due = None
        if self._is_still:
            self._is_spell = True
            self.look()
            asyncio.get_running_loop().call_later(_SPELL_S, self._end_spell)

    def _end_spell(self) -> None:
        self._is_spell = False
        self.look()


def _tell(program: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(program, number)
