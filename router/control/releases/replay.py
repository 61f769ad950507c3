"""Recorded prompts, asked of both releases of a rollout at once while nobody else asks for anything."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from python_backend.wire.errors import InflightError
from python_backend.wire.tiers import Tier
from router.control.releases.own_prompt import Answer, ask
from router.routing.models import ServedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from router.routing.models import Lineup, Registry

log = logging.getLogger(__name__)

_TOKENS, _TIMEOUT_S = 128, 60.0
_LOOK_S = 1.0
_MOST_PROMPTS = 500
# For no longer than that a text is kept here: what is deleted from the log is not asked any more.
_READ_AGAIN_S = 60.0


class Recorded(Protocol):
    def newest(self, model: str, most: int) -> Sequence[tuple[str, str]]:
        """Ids of requests and their prompts, the newest first; reads files."""


# The canary's and the stable release's to the same prompt; None of the one that failed.
ReplayAnswers = tuple[Answer | None, Answer | None]


class ReplayCounter(Protocol):
    """Counts recorded prompts among what the releases of a rollout were asked."""

    def replayed(self, rollout: tuple[int, int], versions: tuple[int, int], answers: ReplayAnswers) -> None:
        """One that has ended at both; `rollout` is its id and its step."""


@dataclass(slots=True)
class _Supply:
    """Of one rollout: what is left to be asked, and what was; each prompt is asked once."""

    read_s: float = float("-inf")
    left: list[tuple[str, str]] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)
    next_s: float = 0.0


class Replays:
    """`is_idle` tells whether a model and two releases of it have nothing else to do. Both are asked at the
    same time, so that each has the other beside it, and with the lowest priority."""

    def __init__(
        self,
        models: Registry,
        recorded: Recorded,
        is_idle: Callable[[str, int, int], bool],
        counter: ReplayCounter,
        on_outcome: Callable[[str, str, str], None] = lambda outcome, model, release: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._models = models
        self._recorded = recorded
        self._is_idle = is_idle
        self._counter = counter
        self._on_outcome = on_outcome
        self._clock = clock
        self._supplies: dict[int, _Supply] = {}

    async def run(self) -> None:
        """For as long as the router runs."""
        while True:
            per_s = 1 / _LOOK_S
            try:
                per_s = max(per_s, await self.tick())
            except Exception:  # of any kind: the rollouts go on without it
                log.exception("recorded prompts")
            await asyncio.sleep(1 / per_s)

    async def tick(self) -> float:
        """One prompt for each rollout whose turn it is; how often, at most, they want one."""
        open_ones = {
            lineup.split.rollout_id: lineup
            for lineup in self._models.lineups.values()
            if lineup.split.rollout_id is not None and lineup.split.replay_per_s
        }
        self._supplies = {number: self._supplies.get(number, _Supply()) for number in open_ones}
        for number, lineup in open_ones.items():
            await self._ask_next(lineup, self._supplies[number])
        return max((lineup.split.replay_per_s for lineup in open_ones.values()), default=0.0)

    async def _ask_next(self, lineup: Lineup, supply: _Supply) -> None:
        split = lineup.split
        canary, stable = (lineup.releases.get(version) for version in (split.arms[0][0], split.stable))
        if not isinstance(canary, ServedModel) or not isinstance(stable, ServedModel):
            return
        if self._clock() < supply.next_s or not self._is_idle(lineup.name, canary.version, stable.version):
            return
        await self._read(lineup.name, supply)
        if not supply.left:
            return
        supply.next_s = self._clock() + 1 / split.replay_per_s
        request_id, prompt = supply.left.pop(0)
        supply.asked.add(request_id)
        answers = await self._both(canary, stable, prompt, is_swapped=len(supply.asked) % 2 == 0)
        outcome = "skipped"
        if not any(map(_is_callers_fault, answers)):
            new, usual = (each if isinstance(each, Answer) else None for each in answers)
            outcome = "failed" if new is None else "compared"
            assert split.rollout_id is not None
            rollout, versions = (split.rollout_id, split.step), (canary.version, stable.version)
            self._counter.replayed(rollout, versions, (new, usual))
        self._on_outcome(outcome, lineup.name, str(canary.version))

    async def _read(self, model: str, supply: _Supply) -> None:
        if self._clock() - supply.read_s < _READ_AGAIN_S:
            return
        is_first, supply.read_s = not supply.asked and not supply.left, self._clock()
        found = await asyncio.to_thread(self._recorded.newest, model, _MOST_PROMPTS)
        supply.left = [each for each in found if each[0] not in supply.asked]
        if is_first and not found:
            log.warning("the prompt log has no prompts of %s that could be replayed", model)

    async def _both(
        self, canary: ServedModel, stable: ServedModel, prompt: str, *, is_swapped: bool
    ) -> tuple[Answer | Exception, Answer | Exception]:
        """Canary first, then stable first: who begins favours nobody."""
        order = (stable, canary) if is_swapped else (canary, stable)
        first, second = await asyncio.gather(*(_ask(each, prompt) for each in order))
        return (second, first) if is_swapped else (first, second)


async def _ask(served: ServedModel, prompt: str) -> Answer | Exception:
    try:
        return await ask(served.pipeline, prompt, _TOKENS, _TIMEOUT_S, tier=Tier.BATCH)
    except (InflightError, asyncio.TimeoutError) as error:
        return error


def _is_callers_fault(answer: Answer | Exception) -> bool:
    """A prompt that one of them cannot take, such as one that is too long for it, says nothing."""
    return isinstance(answer, InflightError) and answer.kind.is_callers_fault
