"""Measures what batches take in Triton; the router in control sets queue delays by it."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from python_backend.wire.errors import InflightError
from router.control.releases.inspection import scrub
from router.control.releases.states import State
from router.control.tuning import memory_fit
from router.control.tuning.decisions import TuningDecision, keep_decision, paused_models
from router.control.tuning.delay_change import apply, queueing_for, read_batched
from router.control.tuning.goals import aim_of, detail_of, goals_of, measured
from router.control.tuning.ladder import Action, Decision, Moment, Pace, decide
from router.control.tuning.statistics import totals_of
from router.control.tuning.subject import Subject, is_any_moving, load_obstacle, trial_obstacle
from router.core.manifest import Kind
from router.triton.control import ControlError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from python_backend.costs.batch_cost import BatchCost, LearnedBatchCost
    from router.control.tuning.delay_change import Batched, Queueing
    from router.control.tuning.goals import Monitor, ObjectiveOf
    from router.control.tuning.ladder import Window
    from router.control.tuning.queue_delay import QueueDelay
    from router.control.tuning.statistics import Totals
    from router.control.tuning.subject import Releases
    from router.core.manifest import Manifest
    from router.routing.replicas import Fleet, Replica
    from router.store.database import StoreAccess

    Misfit = Callable[[Manifest, str, Batched, str], str | None]

log = logging.getLogger(__name__)

_POLL_S = 2.0
# The first requests after a load are not typical.
_SETTLING_S = 5.0


@dataclass(frozen=True, slots=True)
class TuningSettings:
    """`is_on` False: costs are learned, as admission needs them, and nothing is changed."""

    window_s: float = 30.0
    is_on: bool = True


class Tuner:
    """Every router measures; the one where `in_control` holds also changes delays."""

    def __init__(
        self,
        fleet: Fleet,
        releases: Releases,
        objective_of: ObjectiveOf,
        monitor: Monitor,
        store: StoreAccess,
        in_control: Callable[[], bool],
        settings: TuningSettings | None = None,
        *,
        misfit: Misfit = memory_fit.misfit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._releases = releases
        self._objective_of = objective_of
        self._monitor = monitor
        self._store = store
        self._in_control = in_control
        self._settings = settings or TuningSettings()
        self._pace = Pace.of(self._settings.window_s)
        self._misfit = misfit
        self._clock = clock
        self._subjects: dict[tuple[str, str], Subject] = {}

    def learned(self, release: str) -> LearnedBatchCost | None:
        """What batches of a release of fixed cost take; None while too few were seen, and for text."""
        for subject in self._subjects.values():
            if subject.manifest.name == release and subject.is_fixed_cost:
                return subject.learner.learned
        return None

    def batch_cost(self, release: str) -> BatchCost | None:
        """The same without how sure it is."""
        learned = self.learned(release)
        return None if learned is None else learned.cost

    def delays(self) -> Iterator[tuple[Manifest, str, float]]:
        """The queue delay in force, in milliseconds, of each Triton model in which requests gather."""
        for subject in list(self._subjects.values()):
            if subject.batched:
                yield subject.manifest, subject.member, subject.delay_ms

    def totals(self) -> Iterator[tuple[Manifest, str, Totals]]:
        """What each Triton model that is measured has done since this router looks at it, on all servers."""
        for subject in list(self._subjects.values()):
            if subject.batched or subject.is_fixed_cost:
                yield subject.manifest, subject.member, subject.ever

    async def run(self) -> None:
        """A task for as long as the router runs."""
        is_away = False
        while True:
            await asyncio.sleep(min(_POLL_S, self._settings.window_s / 2))
            try:
                await self.turn()
                is_away = False
            except InflightError as error:
                log.log(logging.DEBUG if is_away else logging.WARNING, "tuning is waiting: %s", error.message)
                is_away = True
            except Exception:
                log.exception("an iteration of the tuner failed")

    async def turn(self) -> None:
        self._keep_up_with_releases()
        for subject in list(self._subjects.values()):
            await self._observe(subject)
        if self._settings.is_on and self._in_control():
            await self._tune()

    # Measuring

    def _keep_up_with_releases(self) -> None:
        there = {
            (each.manifest.name, member): each.manifest
            for each in self._releases.releases
            if each.state is State.READY and each.manifest.name in self._fleet.sets
            for member in _measured_members(each.manifest)
        }
        for key in self._subjects.keys() - there.keys():
            del self._subjects[key]
        for key in there.keys() - self._subjects.keys():
            self._subjects[key] = Subject(there[key], key[1], self._clock())

    def _replicas(self, subject: Subject) -> Iterator[Replica]:
        found = self._fleet.sets.get(subject.manifest.name)
        return iter(() if found is None else found.replicas)

    async def _observe(self, subject: Subject) -> None:
        for replica in self._replicas(subject):
            control = replica.server.control
            if not (control.can_control and replica.is_up):
                subject.lose(replica.name)
                continue
            try:
                if replica.name not in subject.known:
                    await self._read_config(subject, replica)
                if subject.is_fixed_cost or replica.name in subject.batched:
                    totals = totals_of(await control.statistics(subject.member))
                    read = (replica.read_rows, replica.read_tokens)
                    subject.add(replica.name, totals, self._clock(), read)
            except ControlError as error:
                log.debug(
                    "the statistics of %s on %s could not be read: %s", subject.name, replica.name, error
                )
                subject.lose(replica.name)

    async def _read_config(self, subject: Subject, replica: Replica) -> None:
        config = await replica.server.control.config(subject.member)
        subject.know(replica.name, read_batched(config))

    # Deciding

    async def _tune(self) -> None:
        if is_any_moving(self._releases):
            return
        due_s = self._clock() - self._settings.window_s
        due = [each for each in self._subjects.values() if each.batched and each.window_began_s <= due_s]
        if due:
            paused = await self._store.read(paused_models)
            for subject in due:
                await self._consider(subject, subject.manifest.model in paused)

    async def _consider(self, subject: Subject, is_paused: bool) -> None:
        """One window of one Triton model is over."""
        for replica in self._replicas(subject):
            if replica.name in subject.batched:
                try:
                    await self._read_config(subject, replica)
                except ControlError:
                    subject.lose(replica.name)
        goals = goals_of(subject.manifest, self._objective_of)
        if not subject.batched:
            return
        if is_paused or not goals:
            await self._keep_or_restore(subject, is_paused)
            return
        now_s, course = self._clock(), subject.course
        window, elsewhere_ms = measured(subject, goals, self._monitor, now_s, self._settings.window_s)
        aim = aim_of(subject, goals, window, elsewhere_ms)
        waits_for = trial_obstacle(subject, self._subjects.values(), self._releases)
        moment = Moment(subject.delay_ms, now_s, self._pace, waits_for)
        decision, subject.course = decide(moment, aim, window, course)
        decision = self._aligned(subject, decision)
        subject.begin_window(now_s)
        if decision.action is not Action.HOLD:
            queueing = self._queueing(subject, decision, aim)
            decision = await self._act(subject, decision, queueing)
            if decision.action is Action.HOLD:
                subject.course = replace(course, wishes=(), trial=None)
        await self._tell(subject, moment.delay_ms, decision, window, aim)

    def _aligned(self, subject: Subject, decision: Decision) -> Decision:
        """A server with less than the others was restarted, and gets what they have."""
        behind = sorted(
            name for name, each in subject.batched.items() if each.queueing.delay_ms < subject.delay_ms
        )
        if decision.action is not Action.HOLD or not behind:
            return decision
        return Decision(Action.ALIGN, subject.delay_ms, f"{', '.join(behind)} was restarted without it")

    def _queueing(self, subject: Subject, decision: Decision, aim: QueueDelay) -> Queueing:
        present = max(subject.batched.values(), key=lambda each: each.queueing.delay_us)
        if decision.action is Action.ALIGN:
            return present.queueing
        return queueing_for(replace(aim, delay_ms=decision.delay_ms), present)

    async def _keep_or_restore(self, subject: Subject, is_paused: bool) -> None:
        """Paused, it stays as it is; without an objective, it goes back to what its own config says."""
        before_ms = subject.delay_ms
        subject.begin_window(self._clock())
        subject.course = replace(subject.course, wishes=(), trial=None)
        if is_paused:
            await self._tell(subject, before_ms, Decision(Action.HOLD, before_ms, "tuning is paused"))
            return
        tuned = [each for each in subject.batched.values() if each.is_tuned]
        if tuned:
            wanted = Decision(Action.RESTORE, tuned[0].own.delay_ms, "the objective was removed")
            decision = await self._act(subject, wanted, tuned[0].own)
            await self._tell(subject, before_ms, decision)

    # Acting

    async def _act(self, subject: Subject, decision: Decision, queueing: Queueing) -> Decision:
        """What came of it: server by server, up to the first that refuses."""
        if queueing == subject.refused:
            return Decision(Action.HOLD, subject.delay_ms, f"{decision.delay_ms:g} ms could not be loaded")
        for replica in self._replicas(subject):
            batched = subject.batched.get(replica.name)
            if batched is None or batched.queueing == queueing:
                continue
            url, member = replica.server.url, subject.member
            why = await asyncio.to_thread(self._misfit, subject.manifest, member, batched, url)
            if why is not None:
                sentence = f"{decision.delay_ms:g} ms would be right ({decision.sentence}), but {why}"
                return Decision(Action.HOLD, subject.delay_ms, sentence)
            if not self._in_control():
                return Decision(Action.HOLD, subject.delay_ms, "another router is in control now")
            if obstacle := load_obstacle(subject, self._releases):
                return Decision(Action.HOLD, subject.delay_ms, obstacle)
            if not replica.is_up:
                continue  # it gets what the others have when it is back
            try:
                await apply(replica.server.control, member, queueing)
                await self._read_config(subject, replica)
            except ControlError as error:
                until_s = self._clock() + self._pace.barred_s
                subject.course = subject.course.barring(decision.delay_ms, until_s)
                subject.refused = queueing
                said = scrub(str(error))
                sentence = f"{decision.delay_ms:g} ms could not be loaded on {replica.name}: {said}"
                return Decision(Action.FAIL, subject.delay_ms, sentence)
        subject.begin_window(self._clock() + min(_SETTLING_S, self._settings.window_s / 2))
        return decision

    async def _tell(
        self,
        subject: Subject,
        before_ms: float,
        decision: Decision,
        window: Window | None = None,
        aim: QueueDelay | None = None,
    ) -> None:
        changed = f"{before_ms:g} -> {decision.delay_ms:g} ms" if decision.delay_ms != before_ms else ""
        sentence = f"queue delay {changed or f'stays {before_ms:g} ms'}: {decision.sentence}"
        level = logging.DEBUG if decision.action is Action.HOLD else logging.INFO
        log.log(level, "%s: %s: %s", subject.name, decision.action.value, sentence)
        manifest = subject.manifest
        row = TuningDecision(
            time.time(),
            manifest.model,
            manifest.version,
            subject.member,
            None,
            decision.action.value,
            sentence,
            detail_of(subject, window, aim, subject.course),
        )
        await self._store.write(partial(keep_decision, row))


def _measured_members(manifest: Manifest) -> list[str]:
    """Not the engine, which does its own batching; not the ensemble that leads to it."""
    if manifest.kind is Kind.TEXT:
        return [member for member in manifest.members if member not in (manifest.engine, manifest.entry)]
    return list(manifest.members)
