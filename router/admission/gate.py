"""Where requests to one release wait for their turn; whose it is, its policy decides."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from python_backend.wire.errors import ErrorKind, InflightError
from router.admission.capacity import UNKNOWN, fitted
from router.admission.demand import Demand, Need, Reason, Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from python_backend.wire.tiers import Tier
    from router.admission.demand import Capacity, Place
    from router.admission.policy import Policy
    from router.admission.signals import Signals
    from router.core.record import Record

# Turns may also come because time passes: deadlines, and what was expected to last longer.
LOOK_EVERY_S = 0.02
_LEAST_RETRY_S = 1.0
# How fast the share of real tokens in estimated ones follows.
_RATIO_STEP = 0.05
_LEAST_RATIO, _MOST_RATIO = 0.1, 1.5


class Watcher(Protocol):
    """Counts what happens at a gate."""

    def refused(self, gate: Gate, tier: Tier, reason: Reason) -> None: ...

    def heard(self, gate: Gate, place: Place, now_s: float) -> None:
        """The first token is there, or the whole answer where the cost is fixed."""


class Stoppable(Protocol):
    def stop(self) -> None: ...


class Waiter(Protocol):
    """Whoever waits for a turn: what is attached to it is stopped when it is cut."""

    cut_by: InflightError | None

    def attach(self, work: Stoppable) -> None: ...
    def cut(self, reason: InflightError) -> None: ...


class Gate:
    """One release's. A turn is offered, comes, and ends; nothing else holds on to it."""

    def __init__(
        self,
        model: str,
        release: str,
        policy: Policy,
        is_fixed_cost: bool = False,
        watcher: Watcher | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model = model
        self.release = release
        self.is_fixed_cost = is_fixed_cost
        self.capacity = UNKNOWN
        self.open_count = 0  # turns that have not ended
        self.taken_places = 0  # by those whose turn has come
        self._policy = policy
        self._watcher = watcher
        self.clock = clock
        self._waiting: dict[Place, tuple[asyncio.Future[None], Waiter]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tokens_ratio = 1.0
        policy.resize(UNKNOWN)

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def signals(self) -> Signals:
        return self._policy.signals(self.clock())

    def resize(self, capacity: Capacity) -> None:
        if capacity != self.capacity:
            self.capacity = capacity
            self._policy.resize(capacity)
            self._hand_on(self.clock())

    def offer(self, record: Record, need: Need, deadline_s: float) -> Turn:
        """Raises InflightError where it would come too late, or not fit at all.

        The client's own deadline counts where it is sooner.
        """
        now_s = self.clock()
        estimated, rows = need.prompt_tokens, max(need.rows, need.sequences)
        prompt_tokens = 0 if self.is_fixed_cost else int(estimated * self._tokens_ratio)
        need = fitted(Need(prompt_tokens, need.completion_tokens, need.sequences), self.capacity)
        demand = Demand(
            record.tenant,
            record.tier,
            need.prompt_tokens,
            need.completion_tokens,
            need.sequences,
            record.arrived_s,
            min(deadline_s, record.deadline_s),
            is_strict=record.deadline_s < deadline_s,
            rows=rows if self.is_fixed_cost else 0,
        )
        place = self._policy.offer(demand, record, now_s)
        if isinstance(place, Refused):
            raise self._refusal(record.tier, place)
        self.open_count += 1
        self._hand_on(now_s)
        return Turn(self, place, record, estimated)

    async def wait(self, place: Place, waiter: Waiter) -> None:
        """Until its turn; raises what ended the wait instead."""
        if place.refusal is None and not place.is_running:
            future = asyncio.get_running_loop().create_future()
            self._waiting[place] = future, waiter
            waiter.attach(_Wait(future))
            self._look_again()
            try:
                await future
            finally:
                self._waiting.pop(place, None)
        if waiter.cut_by is not None:
            raise waiter.cut_by.again()
        if place.refusal is not None:
            raise self._refusal(place.demand.tier, place.refusal)

    def heard(self, place: Place, now_s: float) -> None:
        self._policy.first_token(place, now_s)
        if self._watcher is not None:
            self._watcher.heard(self, place, now_s)
        if self._waiting:
            self._hand_on(now_s)

    def end(self, place: Place, finished: bool) -> None:
        now_s = self.clock()
        self.open_count -= 1
        if place.is_running:
            self.taken_places -= place.sequences
        self._policy.end(place, now_s, finished)
        if self._waiting:
            self._hand_on(now_s)

    def learn_tokens(self, estimated: int, counted: int) -> None:
        """A prompt of which so many tokens were expected had so many."""
        if estimated and counted:
            ratio = min(max(counted / estimated, _LEAST_RATIO), _MOST_RATIO)
            self._tokens_ratio += _RATIO_STEP * (ratio - self._tokens_ratio)

    def cut_waiting(self, reason: InflightError) -> None:
        for _, waiter in list(self._waiting.values()):
            waiter.cut(reason)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _hand_on(self, now_s: float) -> None:
        for place in self._policy.hand_on(now_s):
            if place.is_running:
                self.taken_places += place.sequences
            found = self._waiting.get(place)
            if found is not None and not found[0].done():
                found[0].set_result(None)

    def _look_again(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._waiting:
            self._hand_on(self.clock())
            self._look_again()

    def _refusal(self, tier: Tier, refused: Refused) -> InflightError:
        if self._watcher is not None:
            self._watcher.refused(self, tier, refused.reason)
        if self.is_fixed_cost:  # it answers once, and whole
            refused = replace(refused, message=refused.message.replace("first token", "answer"))
        return refusal_error(refused, random.random())


class _Wait:
    """What a waiter ends that is cut; a future alone, so that nothing holds the waiter."""

    __slots__ = ("_future",)

    def __init__(self, future: asyncio.Future[None]) -> None:
        self._future = future

    def stop(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


class Turn:
    """One request at a gate, from its offer to its end, which comes once however often it is told."""

    __slots__ = ("_estimated_tokens", "_gate", "_has_ended", "_is_heard", "_place", "_record")

    def __init__(self, gate: Gate, place: Place, record: Record, estimated_tokens: int) -> None:
        self._gate = gate
        self._place = place
        self._record = record
        self._estimated_tokens = estimated_tokens
        self._is_heard = self._has_ended = False

    @property
    def is_waiting(self) -> bool:
        return not self._place.is_running

    async def come(self, waiter: Waiter) -> None:
        """Returns when it may go on; raises InflightError when it was cut, or waited in vain."""
        await self._gate.wait(self._place, waiter)

    def heard(self, now_s: float) -> None:
        """For the first of its sequences that says something."""
        if not (self._is_heard or self._has_ended):
            self._is_heard = True
            self._gate.heard(self._place, now_s)

    def end(self, finished: bool) -> None:
        if self._has_ended:
            return
        if finished and self._gate.is_fixed_cost:
            self.heard(self._gate.clock())
        self._has_ended = True
        if finished:
            self._gate.learn_tokens(self._estimated_tokens, self._record.prompt_tokens)
        self._gate.end(self._place, finished)


def refusal_error(refused: Refused, chance: float) -> InflightError:
    """What the caller is told; `chance` in 0..1 spreads the time to come back over 0.8 to 1.2 of it."""
    if refused.reason is Reason.TOO_LARGE:
        return InflightError(ErrorKind.TOO_LARGE, refused.message)
    retry_s = refused.retry_after_s
    if retry_s is not None:
        retry_s = max(retry_s, _LEAST_RETRY_S / 0.8) * (0.8 + 0.4 * chance)
    return InflightError(ErrorKind.OVERLOADED, refused.message, retry_after_s=retry_s)
