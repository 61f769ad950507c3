"""Loads a model again whose process died, by itself: the models beside it go on meanwhile."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from launcher.restart_policy import RestartPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.console import StackConsole


class ModelMender:
    """For a model that others do not need. One that does not stay up is left as it is, and that is said.

    `load` may take seconds and raises OSError when it fails; it runs in a thread of its own.
    """

    def __init__(self, model: str, load: Callable[[], None], console: StackConsole) -> None:
        self._model = model
        self._load = load
        self._console = console
        self._policy = RestartPolicy()
        self._died_s = float("-inf")
        self._due_s: dict[int, float | None] = {}  # by process; None where nothing more is done about it

    def look_after(self, pid: int, now_s: float) -> None:
        """Called again and again while this process of the model is dead."""
        if pid not in self._due_s:
            self._due_s[pid] = self._decide(now_s)
        due_s = self._due_s[pid]
        if due_s is not None and now_s >= due_s:
            self._due_s[pid] = None
            threading.Thread(target=self._mend, name=f"mend {self._model}", daemon=True).start()

    def _decide(self, now_s: float) -> float | None:
        delay_s = self._policy.delay_after_death(now_s - self._died_s)
        self._died_s = now_s
        if delay_s is None:
            self._console.problem(
                f"The {self._model} model does not stay up: it is left out until the next start."
            )
            return None
        self._console.problem(f"The {self._model} model died; loading it again in {delay_s:g} s.")
        return now_s + delay_s

    def _mend(self) -> None:
        try:
            self._load()
        except OSError as error:
            self._console.problem(f"The {self._model} model is left out, it cannot be loaded again: {error}")
        else:
            self._console.say(f"The {self._model} model is back.")
