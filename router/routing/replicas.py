"""One release on one Triton server, all servers that have it, and all releases."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Protocol

from python_backend.wire.pools import BOTH, PREFILL
from router.core.generation import Failure
from router.routing.hedging import Hedges
from router.routing.pools import answering, prompt_place
from router.routing.replay import Poisons, RetryBudget
from router.routing.replica_choice import Health, Opening, choose

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from python_backend.wire.engine_report import EngineReport
    from router.core.manifest import Manifest
    from router.triton.server import TritonServer

log = logging.getLogger(__name__)
REVIVE_WAIT_S = 60.0
APART_TOKENS = 512
_SOUND = Health()


class Work(Protocol):
    """A request that is under way on a replica; the replica sets what it counts for."""

    outstanding_tokens: int

    def give_up(self, reason: str) -> None:
        """The replica will not answer: goes on elsewhere, or fails."""


class Replica:
    """One release on one server. It is sent nothing while it is down, draining or not loaded there."""

    def __init__(
        self, server: TritonServer, manifest: Manifest, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.server = server
        self.name = server.name
        self.manifest = manifest
        self.connection = server.connection
        self.health = _SOUND
        self.outstanding_tokens = 0
        self.begun = 0  # requests it was ever sent
        self.revivals = 0  # of its Triton models, by this router
        self.busy_since_s = inf  # when it got work after it had none
        self.last_progress_s = -inf
        self.last_step_s = -inf  # when its engine was last known to have made another step
        self.report: EngineReport | None = None  # what its engine said of itself last, if it does
        self.reported_s = -inf
        self.read_rows = self.read_tokens = 0  # of texts for embeddings, in all that it answered
        self.on_change: Callable[[], None] = lambda: None
        self._clock = clock
        self._is_loaded: bool | None = None  # not known before Triton was asked
        self._is_draining = False
        self._has_served = False  # it was loaded, or has answered
        self.is_open = True  # loaded, up, not draining: what almost all requests find
        self._works: set[Work] = set()

    def __repr__(self) -> str:
        return f"{self.manifest.name} on {self.server.name}"

    @property
    def is_loaded(self) -> bool:
        """Whether Triton said that it is."""
        return self._is_loaded is True

    @is_loaded.setter
    def is_loaded(self, is_loaded: bool) -> None:
        if is_loaded is not self._is_loaded:
            self._is_loaded = is_loaded
            self._has_served |= is_loaded
            self._changed()

    @property
    def is_draining(self) -> bool:
        """Whether it is to be sent nothing more; what is under way goes on."""
        return self._is_draining

    @is_draining.setter
    def is_draining(self, is_draining: bool) -> None:
        self._is_draining = is_draining
        self._changed()

    @property
    def is_up(self) -> bool:
        return self.is_loaded and self.health.is_up

    @property
    def pool(self) -> str:
        """What its engine is there for, as far as it has said."""
        return BOTH if self.report is None else self.report.pool

    @property
    def open_count(self) -> int:
        return len(self._works)

    @property
    def is_drained(self) -> bool:
        return not self._works

    def is_coming_back(self, now_s: float, restart_s: float) -> bool:
        """Whether it is down and worth waiting for: what was unloaded, or is about to be, is not.

        A server that is gone has nothing loaded: whoever starts it again loads what it had.
        """
        if self._is_draining or not self.health.is_awaited(now_s, restart_s):
            return False
        return self._has_served if self.health.is_gone else self._is_loaded is not False

    @property
    def heard_s(self) -> float:
        """When it last got on with its work: a long prompt is many steps before its first token."""
        return max(self.last_progress_s, self.last_step_s)

    def may_take(self, now_s: float) -> bool:
        if self.is_open or self._is_loaded is False or self._is_draining:
            return self.is_open
        return self.health.may_take(now_s)

    # What requests tell

    def began(self, work: Work, tokens: int, began_s: float | None = None) -> None:
        """`began_s` is what its answer will be told with: a trial is one because both are the same."""
        if not self.is_open:
            self.health = self.health.taking(self._clock() if began_s is None else began_s)
        if not self._works:
            self.busy_since_s = self._clock()
        self._works.add(work)
        self.begun += 1
        work.outstanding_tokens = tokens
        self.outstanding_tokens += tokens

    def revalue(self, work: Work, tokens: int) -> None:
        """So much is left of it; what has ended stays ended."""
        if work.outstanding_tokens:
            self.outstanding_tokens += tokens - work.outstanding_tokens
            work.outstanding_tokens = tokens

    def read(self, tokens: list[int]) -> None:
        """It has answered rows of so many tokens each."""
        self.read_rows += len(tokens)
        self.read_tokens += sum(tokens)

    def ended(self, work: Work) -> None:
        self._works.discard(work)
        self.outstanding_tokens -= work.outstanding_tokens
        work.outstanding_tokens = 0
        if not self._works:
            self.busy_since_s = inf

    def hand_over(self, work: Work, to: Work) -> None:
        """What is under way for one is from now on the other's."""
        self._works.remove(work)
        self._works.add(to)
        to.outstanding_tokens, work.outstanding_tokens = work.outstanding_tokens, 0

    def answered(self, now_s: float, began_s: float | None = None) -> None:
        """A request that began then, or now, has an answer."""
        self.last_progress_s = now_s
        self._has_served = True
        if self.health is not _SOUND:
            self._turn(self.health.after_answer(now_s if began_s is None else began_s, now_s))

    def failed(self, failure: Failure, now_s: float, began_s: float | None = None) -> None:
        self._turn(self.health.after_failure(failure, now_s if began_s is None else began_s, now_s))

    # What probes tell

    def mark_down(self, why: str, now_s: float, reviving: bool, server_is_gone: bool = False) -> None:
        """Nothing is sent to it until `mark_up`; with `reviving`, and a while for a server that is gone,
        requests wait for that."""
        self._turn(self.health.down(why, now_s, reviving, server_is_gone))

    def mark_up(self, now_s: float) -> None:
        self._turn(self.health.up(now_s))

    def cut_all(self, reason: str) -> None:
        """Every request that is under way here goes on elsewhere, or fails."""
        for work in list(self._works):
            work.give_up(reason)

    def _turn(self, health: Health) -> None:
        if health is self.health:
            return
        former, self.health = self.health, health
        if former.is_up != health.is_up:
            log.warning("%r is %s", self, "up again" if health.is_up else f"down: {health.why}")
        was, now = ((each.phase, each.is_reviving, each.is_gone) for each in (former, health))
        if was != now:
            self._changed()

    def _changed(self) -> None:
        self.is_open = self._is_loaded is not False and not self._is_draining and self.health.is_up
        self.on_change()


class ReplicaSet:
    """All replicas of one release. `retries` and `replays` are how many requests went on elsewhere.

    `restart_s` is how long a server that is gone is thought to come back.
    """

    def __init__(
        self,
        manifest: Manifest,
        replicas: Sequence[Replica],
        clock: Callable[[], float] = time.monotonic,
        restart_s: float = REVIVE_WAIT_S,
    ) -> None:
        self.manifest = manifest
        self._restart_s = restart_s
        self.replicas: tuple[Replica, ...] = ()
        self.only: Replica | None = None  # where there is no choice
        self.budget = RetryBudget()
        self.poisons: Poisons | None = None  # nearly always
        self.hedges: Hedges | None = None  # where that was asked for
        self.retries = 0
        self.replays = 0
        self.prompts_elsewhere = 0  # that were computed for another replica
        self.prompts_lost = 0  # that could not be had from there
        self._clock = clock
        self._change: asyncio.Future[None] | None = None
        self._consist_of(replicas)

    def join(self, replica: Replica) -> None:
        self._consist_of((*self.replicas, replica))

    def drop(self, replica: Replica) -> None:
        self._consist_of([each for each in self.replicas if each is not replica])

    def _consist_of(self, replicas: Sequence[Replica]) -> None:
        self.replicas = tuple(replicas)
        self.only = self.replicas[0] if len(self.replicas) == 1 else None
        for replica in replicas:
            replica.on_change = self._changed
        self._changed()

    def can_take(self, exclude: Collection[Replica] = ()) -> bool:
        now_s = self._clock()
        return any(each.may_take(now_s) for each in self.replicas if each not in exclude)

    def pick(self, opening: Opening | None = None, exclude: Collection[Replica] = ()) -> Replica | None:
        """Where a request is to go that begins now."""
        if self.only is not None and self.only.is_open and not exclude:
            return self.only
        now_s = self._clock()
        able = [replica for replica in self.replicas if replica not in exclude and replica.may_take(now_s)]
        if len(able) <= 1:
            return able[0] if able else None
        return choose(answering(able), opening)

    def pick_for_prompt(self, opening: Opening, least_tokens: int) -> Replica | None:
        """Where a prompt is to be computed before it is answered elsewhere; None: where it is answered."""
        now_s = self._clock()
        able = [replica for replica in self.replicas if replica.may_take(now_s)]
        return prompt_place(able, opening, least_tokens)

    @property
    def is_divided(self) -> bool:
        """Whether some are there for prompts alone."""
        return any(replica.pool == PREFILL for replica in self.replicas)

    async def find(
        self,
        opening: Opening | None,
        exclude: Collection[Replica],
        wait_s: float,
        given_up: asyncio.Future[None] | None = None,
        until_s: float = inf,
    ) -> Replica | None:
        """One that may take a request, which may have to be waited for; None when there is none."""
        until_s = min(until_s, self._clock() + wait_s)
        while (replica := self.pick(opening, exclude)) is None:
            if not await self.wait_for_one(until_s - self._clock(), given_up, exclude):
                return None
        return replica

    async def wait_for_one(
        self,
        timeout_s: float,
        given_up: asyncio.Future[None] | None = None,
        exclude: Collection[Replica] = (),
    ) -> bool:
        """Until one may take; False when that took too long, or as soon as none is being brought back."""
        until_s = self._clock() + timeout_s
        while True:
            # Read first: a look that is due in between would be neither done nor waited for.
            now_s = self._clock()
            if self.can_take(exclude):
                return True
            if now_s >= until_s or not self.is_coming_back or (given_up is not None and given_up.done()):
                return False
            if self._change is None:
                self._change = asyncio.get_running_loop().create_future()
            news = [self._change] if given_up is None else [self._change, given_up]
            looks_s = [each.health.look_s for each in self.replicas]
            looks_s += [each.health.gone_s + self._restart_s for each in self.replicas]
            pause_s = min(at_s for at_s in (until_s, *looks_s) if at_s > now_s) - now_s
            await asyncio.wait(news, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)

    @property
    def is_coming_back(self) -> bool:
        """Whether it is worth waiting for one of them."""
        now_s = self._clock()
        return any(each.is_coming_back(now_s, self._restart_s) for each in self.replicas)

    async def ready(self) -> bool:
        """Whether a request sent now would be served, by Triton's own word."""
        now_s = self._clock()
        for replica in self.replicas:
            if replica.may_take(now_s) and await replica.connection.ready(self.manifest.entry):
                return True
        return False

    def _changed(self) -> None:
        if self._change is not None:
            change, self._change = self._change, None
            change.set_result(None)


class Fleet:
    """All servers, and each release on all of them. `servers` is one list for ever: others hold on to it."""

    def __init__(
        self,
        servers: Sequence[TritonServer],
        clock: Callable[[], float] = time.monotonic,
        restart_s: float = REVIVE_WAIT_S,
    ) -> None:
        self.servers = list(servers)
        self._clock = clock
        self._restart_s = restart_s
        self.sets: dict[str, ReplicaSet] = {}  # by the release's name

    def set_of(self, manifest: Manifest) -> ReplicaSet:
        found = self.sets.get(manifest.name)
        if found is None:
            replicas = [Replica(server, manifest, self._clock) for server in self.servers]
            found = ReplicaSet(manifest, replicas, self._clock, self._restart_s)
            self.sets[manifest.name] = found
        return found

    def join(self, server: TritonServer) -> None:
        """One that is new, or that was leaving; nothing is sent to it before a probe has found it ready."""
        self.servers.append(server)
        for found in self.sets.values():
            there = next((each for each in found.replicas if each.server is server), None)
            if there is not None:
                there.is_draining = False
                continue
            replica = Replica(server, found.manifest, self._clock)
            replica.is_loaded = False
            found.join(replica)

    def can_spare(self, server: TritonServer) -> bool:
        """Whether whatever it takes requests for is taken by another server that stays."""
        return all(
            any(each.is_open for each in found.replicas if each.server is not server)
            for found in self.sets.values()
            if any(each.is_open for each in found.replicas if each.server is server)
        )

    def leave(self, server: TritonServer) -> None:
        """What is under way there goes on; nothing more is sent to it, and nobody controls it any more."""
        self.servers.remove(server)
        for replica in self.replicas_on(server):
            replica.is_draining = True

    def drop(self, server: TritonServer) -> None:
        """One that has left, and is gone."""
        for found in self.sets.values():
            for replica in [each for each in found.replicas if each.server is server]:
                found.drop(replica)

    def replicas_on(self, server: TritonServer) -> list[Replica]:
        return [each for found in self.sets.values() for each in found.replicas if each.server is server]

    def forget(self, name: str) -> None:
        """What is under way on it ends as it would have; nobody waits for it any more."""
        found = self.sets.pop(name, None)
        for replica in () if found is None else found.replicas:
            replica.is_draining = True


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """`revive_wait_s` is how long a request waits for a replica that is being brought back, `hedge_percent`
    how many requests may be sent to a second replica because their first token is late, `apart_tokens` how
    long a prompt is at least that is computed by another replica than the one that answers."""

    revive_wait_s: float = REVIVE_WAIT_S
    hedge_percent: float = 0.0
    apart_tokens: int = APART_TOKENS


# Replicas that failed by their own doing, and when they were asked.
Failed = tuple[tuple["Replica", float], ...]


def to_avoid(failed: Failed) -> tuple[Replica, ...]:
    """Who is not to be asked again: who is thought to be up although it failed, unless it came back since."""
    return tuple(
        replica for replica, began_s in failed if replica.health.is_up and replica.health.since_s <= began_s
    )
