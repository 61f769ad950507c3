"""Carries out what is wanted of the releases, in the one router that holds the lease."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import sqlalchemy as sql

from python_backend.wire.errors import InflightError
from router.control.recorder import next_beat
from router.control.releases import records, writes
from router.control.releases.lease import Lease, LeaseTimes, LostControl
from router.control.releases.server_state import ServerState
from router.control.releases.states import ON_THEIR_WAY, Action, Situation, State, next_action
from router.control.releases.steps import Notes, ReleaseSteps
from router.control.releases.writes import Overtaken, is_release
from router.core.manifest import split_name
from router.store.database import StoreAway
from router.store.schema import releases
from router.triton.control import ControlError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from sqlalchemy import Connection

    from router.control.releases.ports import Fleet, Rollouts
    from router.control.releases.records import Release
    from router.control.releases.steps import Tools
    from router.core.manifest import Manifest
    from router.routing.split import ModelSplit
    from router.store.database import StoreAccess

log = logging.getLogger(__name__)

_CANARIES = "canaries"  # a job's name that no release has: theirs have an @
_MOST_RETRIES = 3
_LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """`drain_s`: how long other routers may take to read that a release gets no more requests."""

    poll_s: float = 0.5
    look_every_s: float = 1.0
    drain_s: float = 2.0
    drain_limit_s: float = 120.0
    lease: LeaseTimes = field(default_factory=LeaseTimes)


class Controller:
    """Reads what is wanted, looks at the servers, and starts what `next_action` says: one job a release.

    When the lease is lost, jobs are cancelled; the next holder continues from what the store and Triton say.
    """

    def __init__(
        self,
        store: StoreAccess,
        fleet: Fleet,
        tools: Tools,
        rollouts: Rollouts | None = None,
        settings: ControlSettings | None = None,
    ) -> None:
        self._store = store
        self._fleet = fleet
        self._rollouts = rollouts
        self._settings = settings or ControlSettings()
        self._clock = tools.clock
        self._monotonic = tools.monotonic
        self._lease = Lease(store.store, self._settings.lease, tools.monotonic)
        self._lease_thread = ThreadPoolExecutor(1, thread_name_prefix="lease")
        self._state = ServerState(fleet.servers, brings_files=not tools.is_shared)
        self._steps = ReleaseSteps(store, self._lease, self._state, tools)
        self._jobs: dict[str, asyncio.Task[None]] = {}
        self._notes: dict[str, Notes] = {}
        self._notes_of_canaries = Notes()
        self._seen = -1
        self._found: list[Release] = []
        self._splits: dict[str, ModelSplit] = {}
        self._told_up: dict[str, tuple[int, int]] = {}
        self._told_seen: dict[str, int] = {}
        self._look_again_s = 0.0

    @property
    def in_control(self) -> bool:
        return self._lease.is_held

    async def run(self) -> None:
        """A task for as long as the router runs; cancelled, it leaves the lease to another."""
        await self.beat()
        beating = asyncio.get_running_loop().create_task(self._keep_lease())
        try:
            while True:
                await self._turn_or_log()
                await next_beat(self._settings.poll_s)
        finally:
            beating.cancel()
            await asyncio.wait([beating])
            await self.stop()

    async def stop(self) -> None:
        await self._drop_jobs()
        try:
            await self._in_lease_thread(self._lease.release)
        except StoreAway:
            log.warning("the store is unreachable: another router takes control when the lease expires")
        self._lease_thread.shutdown()

    async def _keep_lease(self) -> None:
        """On its own: nothing that a turn waits for may hold it up."""
        while True:
            await self.beat()
            await asyncio.sleep(self._settings.poll_s)

    async def beat(self) -> None:
        if self._lease.is_due:
            try:
                await self._in_lease_thread(self._lease.seek)
            except StoreAway:
                log.warning("the store is unreachable: the lease of the releases cannot be renewed")
            except Exception:
                log.exception("the lease of the releases cannot be renewed")
        if not self._lease.is_held:
            await self._drop_jobs()

    async def _in_lease_thread(self, act: Callable[[], object]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._lease_thread, act)

    async def _drop_jobs(self) -> None:
        jobs = list(self._jobs.values())
        for job in jobs:
            job.cancel()
        if jobs:
            await asyncio.wait(jobs)

    async def _turn_or_log(self) -> None:
        try:
            await self.turn()
        except InflightError as error:
            log.warning("the releases are waiting: %s", error.message)
        except Exception:
            log.exception("an iteration of the release controller failed")

    async def turn(self) -> None:
        """Starts what has to be done now, if this router is the one to do it."""
        if not self.in_control:
            self._seen = -1
            return
        # A job may end before its release is looked at: what was read of it is stale by then.
        busy = set(self._jobs)
        change = await self._store.last_change(writes.COUNTER)
        self._advance_rollouts(change)
        if change == self._seen and self._monotonic() < self._look_again_s:
            return
        self._look_again_s = self._monotonic() + self._settings.look_every_s
        if change != self._seen:
            self._found, self._splits = await self._store.read(_read)
        await self._look(self._found)
        for release in self._found:
            if release.manifest.name not in busy:
                self._advance(release, self._splits.get(release.manifest.model))
        self._seen = change
        await self._record_seen(change, busy)
        await self._record_replicas_up()

    async def _record_seen(self, change: int, busy: set[str]) -> None:
        """That what the store calls ready is so now: it may say so from before Triton was started anew."""
        ready = [each.manifest for each in self._found if each.state is State.READY]
        there = [each.name for each in ready if each.name not in busy and self._state.is_loaded(each)]
        news = {name: change for name in there if self._told_seen.get(name) != change}
        if news:
            await self._store.write(partial(self._write_seen, news))
            self._told_seen |= news

    def _write_seen(self, news: Mapping[str, int], connection: Connection) -> None:
        self._lease.check(connection)
        writes.note_seen(self._store.store, connection, news)

    async def _record_replicas_up(self) -> None:
        """For people: a release whose process died stays ready while it is revived, and does not answer."""
        there = {
            name: (sum(each.is_up for each in found.replicas), len(found.replicas))
            for name, found in self._fleet.sets.items()
        }
        news = {name: figures for name, figures in there.items() if figures != self._told_up.get(name)}
        if news:
            await self._store.write(partial(_write_replicas_up, news))
            self._told_up = there

    def _advance_rollouts(self, change: int) -> None:
        notes, rollouts = self._notes_of_canaries, self._rollouts
        if rollouts is None or _CANARIES in self._jobs or self._monotonic() < notes.not_before_s:
            return
        if change != self._seen or not rollouts.is_idle:
            self._begin(_CANARIES, notes, partial(rollouts.tick, self._clock()))

    async def _look(self, found: list[Release]) -> None:
        names = {release.manifest.name for release in found}
        self._notes = {name: self._notes.get(name) or Notes() for name in names}
        manifests = [each.manifest for each in found if each.state is not State.GONE]
        back = await self._state.look(manifests)
        if back:  # perhaps started anew: what has failed there is tried once more
            for notes in self._notes.values():
                notes.broken_on -= back
                notes.may_retry = notes.retries < _MOST_RETRIES

    def _advance(self, release: Release, split: ModelSplit | None) -> None:
        manifest = release.manifest
        notes = self._notes[manifest.name]
        if release.state is not State.DRAINING:
            notes.draining_since_s = None
        elif notes.draining_since_s is None:
            notes.draining_since_s = self._monotonic()
        if release.state is not State.FAILED:
            notes.may_retry = False
        situation = Situation(
            release.wanted,
            release.state,
            self._state.presences(manifest, notes.broken_on),
            split is not None and split.weight_of(release.version) > 0,
            manifest.is_built_in,
            self._is_drained(manifest, notes),
            notes.may_retry,
            self._awaits_base(manifest),
        )
        action = next_action(situation)
        if action is not Action.NOTHING and self._monotonic() >= notes.not_before_s:
            log.info("%s is %s: %s", manifest.name, release.state.value, action.value)
            self._begin(manifest.name, notes, partial(self._steps.do, action, release, notes))

    def _awaits_base(self, manifest: Manifest) -> bool:
        base = records.base_of(manifest, self._found) if manifest.base else None
        return base is not None and base.wanted and base.state in ON_THEIR_WAY

    def _is_drained(self, manifest: Manifest, notes: Notes) -> bool:
        if notes.draining_since_s is None:
            return False
        lasted_s = self._monotonic() - notes.draining_since_s
        replicas = self._fleet.sets.get(manifest.name)
        is_busy = replicas is not None and any(each.open_count for each in replicas.replicas)
        return lasted_s >= (self._settings.drain_limit_s if is_busy else self._settings.drain_s)

    def _begin(self, name: str, notes: Notes, work: Callable[[], Awaitable[None]]) -> None:
        task = asyncio.get_running_loop().create_task(self._job(name, notes, work))

        def end(_: asyncio.Task[None]) -> None:
            del self._jobs[name]
            if name != _CANARIES:
                self._look_again_s = 0.0

        self._jobs[name] = task
        task.add_done_callback(end)

    async def _job(self, name: str, notes: Notes, work: Callable[[], Awaitable[None]]) -> None:
        """A job that fails is started again, with backoff."""
        try:
            await work()
            notes.broken_jobs = 0
            return
        except (LostControl, Overtaken) as error:
            log.info("%s: %s", name, error)
        except InflightError as error:
            log.warning("%s: waiting: %s", name, error.message)
        except ControlError as error:
            log.warning("%s: Triton refuses: %s", name, error)
        except Exception:
            log.exception("%s: unexpected error", name)
        notes.broken_jobs += 1
        notes.not_before_s = self._monotonic() + min(_LONGEST_PAUSE_S, 0.5 * 2.0 ** min(notes.broken_jobs, 8))


def _write_replicas_up(news: Mapping[str, tuple[int, int]], connection: Connection) -> None:
    for name, (up, servers) in news.items():
        model, version = split_name(name)
        if version is not None:
            values = {"replicas_up": up, "replicas": servers}
            connection.execute(sql.update(releases).where(is_release(model, version)).values(values))


def _read(connection: Connection) -> tuple[list[Release], dict[str, ModelSplit]]:
    """Those with most of the traffic first: they are loaded first."""
    splits = records.list_splits(connection)

    def share(release: Release) -> float:
        split = splits.get(release.manifest.model)
        return 0.0 if split is None else split.weight_of(release.version)

    return sorted(records.list_releases(connection), key=share, reverse=True), splits
