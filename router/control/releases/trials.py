"""Work for rollouts that goes on beside the decisions about them: prompts that are asked and measured."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class TrialGivenUp(Exception):
    """It broke as often as it may, through no known fault of a release; the log says how."""


@dataclass(frozen=True, slots=True)
class TrialKey:
    """One kind of work for one rollout in one step."""

    rollout_id: int
    step: int
    what: str


@dataclass(frozen=True, slots=True)
class _Trial:
    task: asyncio.Task[Any]
    number: int


class Trials:
    """Each is begun when it is first asked for, and again when it broke."""

    def __init__(self) -> None:
        self._trials: dict[TrialKey, _Trial] = {}

    def take(
        self,
        key: TrialKey,
        work: Callable[[], Coroutine[Any, Any, Result]],
        most: int = 10,
        again_s: float = 2.0,
    ) -> Result | None:
        """What came of it; None while it is under way. Raises TrialGivenUp."""
        trial = self._trials.get(key)
        if trial is None:
            self._begin(key, work, 1, 0.0)
            return None
        if not trial.task.done():
            return None
        error = trial.task.exception()
        if error is None:
            result: Result = trial.task.result()
            return result
        log.error("%s of rollout %d", key.what, key.rollout_id, exc_info=error)
        if trial.number >= most:
            raise TrialGivenUp
        self._begin(key, work, trial.number + 1, again_s)
        return None

    def keep_only(self, present: Collection[tuple[int, int]]) -> None:
        """Those of these rollouts in these steps; the others are cancelled and forgotten."""
        for key in [each for each in self._trials if (each.rollout_id, each.step) not in present]:
            self._trials.pop(key).task.cancel()

    def _begin(
        self, key: TrialKey, work: Callable[[], Coroutine[Any, Any, Any]], number: int, after_s: float
    ) -> None:
        task = asyncio.get_running_loop().create_task(_later(work, after_s))
        self._trials[key] = _Trial(task, number)


async def _later(work: Callable[[], Coroutine[Any, Any, Result]], after_s: float) -> Result:
    if after_s:
        await asyncio.sleep(after_s)
    return await work()
