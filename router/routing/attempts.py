"""One request on its way through a fleet: attempts, one after another, until one of them is answered."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.generation import Failure
from router.grpc.status import GrpcError
from router.routing.replay import is_releases_fault, is_replicas_fault, may_go_on
from router.triton.client import TritonGeneration, read_once
from router.triton.failures import UNAVAILABLE, TritonError, cut_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from router.core.trace import Trace
    from router.grpc.call import Call
    from router.routing.replicas import FleetSettings, Replica, ReplicaSet


async def find_replica(
    replicas: ReplicaSet,
    key: bytes | None,
    exclude: tuple[Replica, ...],
    wait_s: float,
    given_up: asyncio.Future[None] | None = None,
) -> Replica | None:
    """One that may take a request, which may have to be waited for; None when there is none."""
    until_s = time.monotonic() + wait_s
    while (replica := replicas.pick(key, exclude)) is None:
        if not await replicas.wait_for_one(until_s - time.monotonic(), given_up, exclude):
            return None
    return replica


# Replicas that failed by their own doing, and when they were asked.
Failed = tuple[tuple["Replica", float], ...]


def to_avoid(failed: Failed) -> tuple[Replica, ...]:
    """Who is not to be asked again: who is thought to be up although it failed, unless it came back since."""
    return tuple(
        replica for replica, began_s in failed if replica.health.is_up and replica.health.since_s <= began_s
    )


class Attempts(ABC):
    """At most one attempt is in flight.

    It counts for its replica from its begin until Triton is done with it, whoever reads and however it ends.
    One that its replica failed is followed by another elsewhere, or on the same replica when it is back,
    under an id of its own.
    """

    _can_replay = False  # whether one of which something was told can begin again
    __slots__ = (
        "_attempt",
        "_attempts",
        "_began_s",
        "_failed",
        "_given_up",
        "_has_told",
        "_heard",
        "_is_over",
        "_replica",
        "_replicas",
        "_settings",
        "_stop_asked",
        "_tokens",
        "_trace",
        "lost_attempts",
        "outstanding_tokens",
    )

    def __init__(
        self, replicas: ReplicaSet, settings: FleetSettings, tokens: int, trace: Trace | None = None
    ) -> None:
        self._replicas = replicas
        self._settings = settings
        self._trace = trace
        self._tokens = tokens  # what it counts for until it is heard of
        self.outstanding_tokens = 0
        self.lost_attempts = 0  # by faults of the release, whoever has saved the request
        self._attempt: TritonGeneration | None = None
        self._attempts = 0
        self._replica: Replica | None = None  # of the last attempt
        self._failed: Failed = ()
        self._began_s = 0.0
        self._heard = False  # of the attempt that is under way
        self._given_up: asyncio.Future[None] | None = None  # there while it waits for a replica
        self._has_told = False  # something of it is in the reader's hands
        self._stop_asked = False
        self._is_over = False

    @abstractmethod
    def _open(self, replica: Replica, number: int) -> TritonGeneration:
        """The attempt of this number; the first is 1."""

    @abstractmethod
    def _key(self) -> bytes | None:
        """What the choice of a replica goes by, where there is one."""

    @abstractmethod
    def _take(self, item: Any, replica: Replica) -> Any:
        """What of it is news to the reader, or None."""

    @abstractmethod
    def _stopped(self) -> Any:
        """The end of one that was stopped while nothing was under way."""

    def __aiter__(self) -> Attempts:
        return self

    async def __anext__(self) -> Any:
        if self._is_over:
            raise StopAsyncIteration
        while True:
            attempt = self._attempt or await self._begin()
            if attempt is None:
                return self._stopped()
            try:
                while (item := attempt.take()) is None:
                    await attempt.more()
            except TritonError as error:
                if not self._survives(error):
                    raise
                continue
            except asyncio.CancelledError:
                attempt.abandon()
                raise
            replica = self._replica
            assert replica is not None
            if self._heard:
                replica.last_progress_s = time.monotonic()
            else:
                self._heard = True
                replica.answered(time.monotonic(), self._began_s)
            item = self._take(item, replica)
            if item is not None:
                self._has_told = True
                return item

    async def _begin(self) -> TritonGeneration | None:
        """None where it was stopped before."""
        replicas = self._replicas
        replica = None
        if not self._stop_asked:
            key = None if replicas.only is not None else self._key()
            exclude = to_avoid(self._failed) if self._failed else ()
            replica = replicas.pick(key, exclude) or await self._wait(key, exclude)
        if replica is None:
            self._is_over = True
            if self._stop_asked:
                return None
            raise InflightError(ErrorKind.ENGINE_FAILED, UNAVAILABLE)
        self._attempts += 1
        if self._attempts == 1:
            if replicas.budget.left < replicas.budget.reserve:
                replicas.budget.requested()
        elif self._has_told:
            replicas.replays += 1
        else:
            replicas.retries += 1
        self._replica = replica
        self._began_s = time.monotonic()
        self._heard = False
        if self._trace is not None:
            self._trace.attempted(replica.name, self._began_s)
        attempt = self._attempt = self._open(replica, self._attempts)
        attempt.on_end = partial(replica.ended, self)
        replica.began(self, self._tokens, self._began_s)
        return attempt

    async def _wait(self, key: bytes | None, exclude: tuple[Replica, ...]) -> Replica | None:
        self._given_up = asyncio.get_running_loop().create_future()
        self._is_over = True  # should the reader leave
        wait_s = self._settings.revive_wait_s
        replica = await find_replica(self._replicas, key, exclude, wait_s, self._given_up)
        self._given_up = None
        self._is_over = False
        return None if self._stop_asked else replica

    def _survives(self, error: TritonError) -> bool:
        """Whether there is to be another attempt, or an end that a stop asked for."""
        assert self._replica is not None
        self._replica.failed(error.failure, time.monotonic(), self._began_s)
        if is_releases_fault(error.failure, self._replica.health.is_reviving):
            self.lost_attempts += 1
        if self._trace is not None:
            self._trace.failed(self._began_s, error.failure.name.lower())
        if self._stop_asked:
            goes_on = is_replicas_fault(error.failure)
        else:
            goes_on = may_go_on(error.failure, self._attempts) and (
                self._can_replay if self._has_told else self._replicas.budget.take()
            )
        if error.failure is not Failure.CUT:
            self._failed += ((self._replica, self._began_s),)
        if goes_on and self._attempt is not None:
            self._attempt.cut()
            self._attempt = None
        return goes_on

    def stop(self) -> None:
        if not self._stop_asked:
            self._stop_asked = True
            if self._attempt is not None:
                self._attempt.stop()
            elif self._given_up is not None and not self._given_up.done():
                self._given_up.set_result(None)

    def give_up(self, reason: str) -> None:
        if self._attempt is not None:
            self._attempt.cut()


Answer = TypeVar("Answer")


class SingleCall:
    """One ModelInfer on one replica, for which it counts as long as it is under way."""

    def __init__(self, replica: Replica, tokens: int, began_s: float) -> None:
        self.outstanding_tokens = 0
        self._began_s = began_s
        self._replica = replica
        self._tokens = tokens
        self._call: Call | None = None
        self._is_cut = False

    async def infer_once(self, request: Any, timeout_s: float | None = None) -> Any:
        """Raises GrpcError; TritonError where it was given up."""
        replica = self._replica
        replica.began(self, self._tokens, self._began_s)
        call = self._call = replica.connection.begin_once(request, timeout_s)
        call.on_end(partial(replica.ended, self))
        try:
            return await read_once(call)
        except GrpcError:
            if self._is_cut:
                raise cut_error() from None
            raise

    async def ready(self, model: str) -> bool:
        return await self._replica.connection.ready(model)

    def give_up(self, reason: str) -> None:
        self._is_cut = True
        if self._call is not None:
            self._call.cancel()


async def ask(
    replicas: ReplicaSet,
    settings: FleetSettings,
    tokens: int,
    make: Callable[[SingleCall], Awaitable[Answer]],
) -> Answer:
    """What `make` makes of a call, on the first replica that answers it; raises InflightError."""
    replicas.budget.requested()
    failed: Failed = ()
    attempts = 0
    while True:
        replica = await find_replica(replicas, None, to_avoid(failed), settings.revive_wait_s)
        if replica is None:
            raise InflightError(ErrorKind.ENGINE_FAILED, UNAVAILABLE)
        attempts += 1
        if attempts > 1:
            replicas.retries += 1
        began_s = time.monotonic()
        try:
            answer = await make(SingleCall(replica, tokens, began_s))
        except TritonError as error:
            replica.failed(error.failure, time.monotonic(), began_s)
            if not (may_go_on(error.failure, attempts) and replicas.budget.take()):
                raise
            if error.failure is not Failure.CUT:
                failed += ((replica, began_s),)
        else:
            replica.answered(time.monotonic(), began_s)
            return answer
