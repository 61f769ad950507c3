"""Brings open rollouts on: reads what all routers have measured, decides, and writes what follows.

All of its state is in the store, so the router in control continues where another one stopped.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import sqlalchemy as sql

from python_backend.wire.errors import InflightError
from router.control.releases import records
from router.control.releases.arms import read_figures
from router.control.releases.deaths import deaths_in
from router.control.releases.next_steps import Change, Golden, Situation, measured_of, next_change
from router.control.releases.proof import proof_of
from router.control.releases.records import RolloutState
from router.control.releases.rehearsal import Rehearsed
from router.control.releases.shadow_figures import list_shadows
from router.control.releases.shadow_gate import ShadowAnswers
from router.control.releases.trials import TrialGivenUp, TrialKey, Trials
from router.control.releases.writes import bump, is_release, put_split, write_event
from router.store.schema import releases, rollouts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection

    from router.control.releases.proof import Proof
    from router.control.releases.records import GoldenPrompt, Rollout
    from router.core.manifest import Manifest
    from router.routing.split import ModelSplit
    from router.store.database import StoreAccess

log = logging.getLogger(__name__)

_GOLDEN_AGAIN_S = 2.0
_MOST_REHEARSALS = 3
_REHEARSE_AGAIN_S = 10.0
_SHOWN_FAILURES = 3


class GoldenFailure(Protocol):
    def sentence(self) -> str: ...


class GoldenPrompts(Protocol):
    """Asks a release what the answer is known of."""

    async def failures(
        self, manifest: Manifest, prompts: Sequence[GoldenPrompt]
    ) -> Sequence[GoldenFailure]: ...


class Rehearsals(Protocol):
    """Measures two releases side by side, before one of them has any traffic."""

    async def compare(self, canary: Manifest, stable: Manifest, allowed_ratio: float) -> Rehearsed: ...


class CanaryRunner:
    """`is_up` tells whether any replica of a release can take requests now; `on_rollback` is called with the
    model of each automatic rollback, `on_proofs` with what each canary has shown so far."""

    def __init__(
        self,
        access: StoreAccess,
        golden: GoldenPrompts,
        is_up: Callable[[Manifest], bool],
        on_rollback: Callable[[str], None] = lambda model: None,
        rehearsals: Rehearsals | None = None,
        on_proofs: Callable[[Sequence[Proof]], None] = lambda proofs: None,
    ) -> None:
        self._on_proofs = on_proofs
        self._rehearsals = rehearsals
        self._on_rollback = on_rollback
        self._access = access
        self._golden = golden
        self._is_up = is_up
        self._trials = Trials()
        self._down_since_s: dict[int, float] = {}  # by rollout: how long its canary alone has been down
        self._is_away = False
        self.is_idle = False

    async def tick(self, now_s: float) -> None:
        """Each open rollout, once; while the store is unreachable nothing is decided or forgotten."""
        try:
            self.is_idle = False
            situations = await self._access.read(self._situations)
            self._forget_all_but({(each.rollout.id, each.rollout.progress.step) for each in situations})
            for situation in situations:
                await self._advance(situation, now_s)
            self._on_proofs([proof_of(each) for each in situations])
        except InflightError as error:
            if not self._is_away:
                log.warning("rollouts are waiting for the store: %s", error)
            self._is_away = True
        else:
            self._is_away = False
            self.is_idle = not situations

    async def close(self) -> None:
        self._forget_all_but(set())

    def _situations(self, connection: Connection) -> list[Situation]:
        found = []
        for rollout in records.list_rollouts(connection, only_open=True):
            split = records.find_split(connection, rollout.model)
            there = {each.version: each for each in records.list_releases(connection, rollout.model)}
            found.append(
                Situation(
                    rollout,
                    split,
                    there.get(rollout.canary),
                    there.get(rollout.stable),
                    measured_of(rollout, read_figures(connection, rollout.id)),
                    deaths_in(connection, rollout),
                    _shadow_answers(connection, rollout, split),
                )
            )
        return found

    async def _advance(self, situation: Situation, now_s: float) -> None:
        rollout = situation.rollout
        down_s = self._down_s(situation, now_s)
        golden = self._take_golden(situation)
        rehearsed = self._take_rehearsal(situation, golden)
        change = next_change(situation, golden, down_s, now_s, rehearsed)
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
        work = partial(self._ask_golden, canary.manifest, rollout)
        try:
            return self._trials.take(
                TrialKey(rollout.id, step, "golden prompts"), work, again_s=_GOLDEN_AGAIN_S
            )
        except TrialGivenUp:
            return Golden(step, len(rollout.golden), "they could not be asked: see the router's log")

    async def _ask_golden(self, manifest: Manifest, rollout: Rollout) -> Golden:
        """A failure may be a transient one, and is asked once more."""
        failed = await self._golden.failures(manifest, rollout.golden)
        if len(failed) > rollout.plan.tolerance.golden_failures:
            await asyncio.sleep(_GOLDEN_AGAIN_S)
            failed = await self._golden.failures(manifest, rollout.golden)
        note = "; ".join(each.sentence() for each in failed[:_SHOWN_FAILURES])
        return Golden(rollout.progress.step, len(failed), note)

    def _take_rehearsal(self, situation: Situation, golden: Golden | None) -> Rehearsed | None:
        """After the golden prompts, which would be in its way; once, before the first step."""
        rollout, canary, stable = situation.rollout, situation.canary, situation.stable
        progress = rollout.progress
        is_due = progress.step == -1 and not progress.is_rehearsed
        is_due = is_due and (golden is not None or progress.golden_step == -1)
        if canary is None or stable is None or not (situation.is_ready and is_due):
            return None
        if self._rehearsals is None or not rollout.plan.is_rehearsed:
            return Rehearsed()
        ratio = rollout.plan.tolerance.latency_ratio
        key = TrialKey(rollout.id, -1, "the rehearsal")
        work = partial(self._rehearsals.compare, canary.manifest, stable.manifest, ratio)
        try:
            return self._trials.take(key, work, _MOST_REHEARSALS, _REHEARSE_AGAIN_S)
        except TrialGivenUp:
            return Rehearsed(note="nothing could be measured: see the router's log")

    def _forget_all_but(self, present: set[tuple[int, int]]) -> None:
        self._trials.keep_only(present)
        for number in set(self._down_since_s) - {number for number, _ in present}:
            del self._down_since_s[number]

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
            values |= {"state": change.state.value, "ended_s": now_s if change.state.is_over else None}
        connection.execute(sql.update(rollouts).where(is_this).values(values))
        if change.split is not None:
            put_split(self._access.store, connection, change.split)
        if change.drops_canary:
            canary = is_release(seen.model, seen.canary)
            connection.execute(sql.update(releases).where(canary).values(wanted=False))
        if change.event is not None:
            write_event(connection, now_s, seen.model, seen.canary, change.event, change.reason)
        return True


def _shadow_answers(connection: Connection, rollout: Rollout, split: ModelSplit | None) -> ShadowAnswers:
    """Of the canary against the stable release, where the plan asks for them."""
    if not rollout.plan.min_likeness:
        return ShadowAnswers()
    shadow = None if split is None else split.shadow
    is_on = shadow is not None and shadow.version == rollout.canary
    for each in list_shadows(connection, rollout.model):
        if (each.shadow, each.version) == (rollout.canary, rollout.stable):
            count = each.sums.compared + each.sums.failed
            return ShadowAnswers(count, each.sums.likeness / count if count else 0.0, is_on)
    return ShadowAnswers(is_on=is_on)
