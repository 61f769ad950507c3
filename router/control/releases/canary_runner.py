"""Brings open rollouts on: reads what all routers have measured, decides, and writes what follows.

All of its state is in the store, so the router in control continues where another one stopped.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

import sqlalchemy as sql

from python_backend.wire.errors import InflightError
from router.control.releases import records
from router.control.releases.arms import read_figures
from router.control.releases.next_steps import Change, Golden, Situation, measured_of, next_change
from router.control.releases.records import RolloutState
from router.control.releases.writes import bump, is_release, put_split, write_event
from router.store.schema import releases, rollouts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection

    from router.control.releases.records import GoldenPrompt, Rollout
    from router.core.manifest import Manifest
    from router.store.database import StoreAccess

log = logging.getLogger(__name__)

_GOLDEN_AGAIN_S = 2.0
_MOST_BROKEN_TRIALS = 10
_SHOWN_FAILURES = 3


class GoldenFailure(Protocol):
    def sentence(self) -> str: ...


class GoldenPrompts(Protocol):
    """Asks a release what the answer is known of."""

    async def failures(
        self, manifest: Manifest, prompts: Sequence[GoldenPrompt]
    ) -> Sequence[GoldenFailure]: ...


@dataclass(frozen=True, slots=True)
class _Trial:
    """The golden prompts of one rollout before one step, on their way."""

    step: int
    task: asyncio.Task[Golden]
    number: int = 1


class CanaryRunner:
    """`is_up` tells whether any replica of a release can take requests now; `on_rollback` is called with the
    model of each automatic rollback."""

    def __init__(
        self,
        access: StoreAccess,
        golden: GoldenPrompts,
        is_up: Callable[[Manifest], bool],
        on_rollback: Callable[[str], None] = lambda model: None,
    ) -> None:
        self._on_rollback = on_rollback
        self._access = access
        self._golden = golden
        self._is_up = is_up
        self._trials: dict[int, _Trial] = {}
        self._down_since_s: dict[int, float] = {}  # by rollout: how long its canary alone has been down
        self._is_away = False
        self.is_idle = False

    async def tick(self, now_s: float) -> None:
        """Each open rollout, once; while the store is unreachable nothing is decided or forgotten."""
        try:
            self.is_idle = False
            situations = await self._access.read(self._situations)
            self._forget_all_but({each.rollout.id for each in situations})
            for situation in situations:
                await self._advance(situation, now_s)
        except InflightError as error:
            if not self._is_away:
                log.warning("rollouts wait for the store: %s", error)
            self._is_away = True
        else:
            self._is_away = False
            self.is_idle = not situations

    async def close(self) -> None:
        self._forget_all_but(set())

    def _situations(self, connection: Connection) -> list[Situation]:
        found = []
        for rollout in records.list_rollouts(connection, only_open=True):
            there = {each.version: each for each in records.list_releases(connection, rollout.model)}
            found.append(
                Situation(
                    rollout,
                    records.find_split(connection, rollout.model),
                    there.get(rollout.canary),
                    there.get(rollout.stable),
                    measured_of(rollout, read_figures(connection, rollout.id)),
                )
            )
        return found

    async def _advance(self, situation: Situation, now_s: float) -> None:
        rollout = situation.rollout
        down_s = self._down_s(situation, now_s)
        golden = self._take_golden(situation)
        change = next_change(situation, golden, down_s, now_s)
        if change is None:
            return
        wrote = await self._access.write(lambda connection: self._write(connection, situation, change, now_s))
        if wrote and change.event is not None:
            log.info("%s@%d: %s: %s", rollout.model, rollout.canary, change.event, change.reason)
        if wrote and change.state is RolloutState.ROLLED_BACK:
            self._on_rollback(rollout.model)

    def _down_s(self, situation: Situation, now_s: float) -> float:
        """How long nothing answers for a canary that is loaded, although the stable release is there."""
        canary, stable, number = situation.canary, situation.stable, situation.rollout.id
        is_canarys_own = (
            canary is not None
            and situation.is_ready
            and not self._is_up(canary.manifest)
            and stable is not None
            and self._is_up(stable.manifest)
        )
        if not is_canarys_own:
            self._down_since_s.pop(number, None)
            return 0.0
        return now_s - self._down_since_s.setdefault(number, now_s)

    def _take_golden(self, situation: Situation) -> Golden | None:
        """What came of the present step's prompts, once they are through; begins them where they are due."""
        rollout, canary = situation.rollout, situation.canary
        step = rollout.progress.step
        if canary is None or not situation.is_ready or rollout.progress.golden_step >= step:
            return None
        if not rollout.golden:
            return Golden(step, 0, "")
        trial = self._trials.get(rollout.id)
        if trial is None or trial.step != step:
            self._forget_trial(rollout.id)
            self._begin_trial(canary.manifest, rollout, 1)
            return None
        if not trial.task.done():
            return None
        if (error := trial.task.exception()) is None:
            return trial.task.result()
        log.error("golden prompts of %s", canary.manifest.name, exc_info=error)
        if trial.number < _MOST_BROKEN_TRIALS:  # not an answer: another try
            self._begin_trial(canary.manifest, rollout, trial.number + 1)
            return None
        return Golden(step, len(rollout.golden), "they could not be asked: the router's log says why")

    def _begin_trial(self, manifest: Manifest, rollout: Rollout, number: int) -> None:
        task = asyncio.get_running_loop().create_task(self._try(manifest, rollout, number))
        self._trials[rollout.id] = _Trial(rollout.progress.step, task, number)

    async def _try(self, manifest: Manifest, rollout: Rollout, number: int) -> Golden:
        """A failure may be a transient one, and is asked once more."""
        if number > 1:
            await asyncio.sleep(_GOLDEN_AGAIN_S)
        failed = await self._golden.failures(manifest, rollout.golden)
        if len(failed) > rollout.plan.tolerance.golden_failures:
            await asyncio.sleep(_GOLDEN_AGAIN_S)
            failed = await self._golden.failures(manifest, rollout.golden)
        note = "; ".join(each.sentence() for each in failed[:_SHOWN_FAILURES])
        return Golden(rollout.progress.step, len(failed), note)

    def _forget_all_but(self, open_ones: set[int]) -> None:
        for number in set(self._trials) - open_ones:
            self._forget_trial(number)
        for number in set(self._down_since_s) - open_ones:
            del self._down_since_s[number]

    def _forget_trial(self, rollout_id: int) -> None:
        trial = self._trials.pop(rollout_id, None)
        if trial is not None:
            trial.task.cancel()

    def _write(self, connection: Connection, situation: Situation, change: Change, now_s: float) -> bool:
        """Unless rollout or split were changed since they were read: then the next tick decides again."""
        seen = situation.rollout
        if change.event is not None:
            bump(self._access.store, connection)
        is_this = rollouts.c.id == seen.id
        row = connection.execute(sql.select(rollouts).where(is_this).with_for_update()).mappings().first()
        current = None if row is None else records.rollout_of(row)
        if current is None or (current.state, current.progress) != (seen.state, seen.progress):
            return False
        if change.split is not None and records.find_split(connection, seen.model) != situation.split:
            return False
        values: dict[str, Any] = {
            "progress": json.dumps(asdict(change.progress)),
            "reason": change.reason,
            "figures": json.dumps(change.figures),
        }
        if change.state is not None:
            values |= {"state": change.state.value, "ended_s": now_s}
        connection.execute(sql.update(rollouts).where(is_this).values(values))
        if change.split is not None:
            put_split(self._access.store, connection, change.split)
        if change.drops_canary:
            canary = is_release(seen.model, seen.canary)
            connection.execute(sql.update(releases).where(canary).values(wanted=False))
        if change.event is not None:
            write_event(connection, now_s, seen.model, seen.canary, change.event, change.reason)
        return True
