"""Where requests to one release wait for their turn; whose it is, its policy decides."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from python_backend.wire.errors import ErrorKind, InflightError
from router.admission.capacity import UNKNOWN, fitted, fitting_tokens
from router.admission.demand import Demand, EntryState, Need, Reason, Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from python_backend.wire.tiers import Tier
    from router.admission.capacity import Capacity
    from router.admission.demand import QueueEntry
    from router.admission.policy import Policy
    from router.admission.signals import Signals
    from router.core.objective import Objective
    from router.core.record import Record

# Turns may also come because time passes: deadlines, and what was expected to last longer.
LOOK_EVERY_S = 0.02
_LEAST_RETRY_S = 1.0
# How fast the ratio of real tokens to estimated ones follows.
_RATIO_STEP = 0.05
_LEAST_RATIO, _MOST_RATIO = 0.1, 1.5


class Watcher(Protocol):
    """Counts what happens at a gate."""

    def refused(self, gate: Gate, tier: Tier, reason: Reason) -> None: ...

    def heard(self, gate: Gate, entry: QueueEntry, now_s: float) -> None:
        """The first token has come, or the whole answer of a batch model."""


class Waiter(Protocol):
    """Who waits for a turn, and may be cut from outside meanwhile."""

    @property
    def cut_by(self) -> InflightError | None:
        """Why it was cut, if it was."""

    def attach(self, work: PendingTurn) -> None:
        """`work` is to be stopped when it is cut, at once where it was cut before."""

    def cut(self, reason: InflightError) -> None: ...


class PendingTurn:
    """What a waiter stops when it is cut; a future alone, so that nothing here holds the waiter."""

    __slots__ = ("_future",)

    def __init__(self, future: asyncio.Future[None]) -> None:
        self._future = future

    def stop(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


class Gate:
    """One release's. A turn is offered, comes, and ends; nothing else holds on to it."""

    def __init__(
        self,
        model: str,
        release: str,
        policy: Policy,
        objective_of: Callable[[str, Tier], Objective],
        is_fixed_cost: bool = False,
        watcher: Watcher | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model = model
        self.release = release
        self.is_fixed_cost = is_fixed_cost
        self.capacity = UNKNOWN
        self.open_count = 0  # turns that have not ended
        self.taken_slots = 0  # by those whose turn has come
        self._policy = policy
        self._objective_of = objective_of
        self._watcher = watcher
        self.clock = clock
        self._waiting: dict[QueueEntry, tuple[asyncio.Future[None], Waiter]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tokens_ratio = 1.0
        self._fitting_tokens = fitting_tokens(UNKNOWN)
        policy.resize(UNKNOWN)

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def signals(self) -> Signals:
        return self._policy.signals(self.clock())

    def resize(self, capacity: Capacity) -> None:
        if capacity != self.capacity:
            self.capacity = capacity
            self._fitting_tokens = fitting_tokens(capacity)
            self._policy.resize(capacity)
            self._hand_on(self.clock())

    def offer(self, record: Record, need: Need) -> Turn:
        """Raises InflightError where it would come too late, or not fit at all."""
        now_s = self.clock()
        demand = self._demand(record, need)
        entry = self._policy.admit(demand, record, now_s)
        if isinstance(entry, Refused):
            raise self._refusal(record.tier, entry)
        self.open_count += 1
        if entry.state is EntryState.RUNNING:
            self.taken_slots += entry.sequences
        else:
            self._hand_on(now_s)
        return Turn(self, entry, record, need.prompt_tokens)

    def _demand(self, record: Record, need: Need) -> Demand:
        """Due as the objective says, or by the client's own deadline where that is sooner."""
        prompt, completion, sequences, rows = need.prompt_tokens, need.completion_tokens, need.sequences, 0
        if self.is_fixed_cost:
            rows = max(need.rows, sequences)
        prompt = int(prompt * self._tokens_ratio)
        whole = completion if self.capacity.holds_whole_answers else 0
        if sequences != 1 or prompt + whole > self._fitting_tokens:
            counted = fitted(Need(prompt, completion, sequences), self.capacity)
            prompt, completion = counted.prompt_tokens, counted.completion_tokens
            sequences = counted.sequences
        objective = self._objective_of(self.model, record.tier)
        patience_s = objective.whole_patience_s if self.is_fixed_cost else objective.patience_s
        deadline_s = record.arrived_s + patience_s
        is_strict = record.deadline_s < deadline_s
        return Demand(
            record.caller.organisation.id,
            record.tier,
            prompt,
            completion,
            sequences,
            record.arrived_s,
            record.deadline_s if is_strict else deadline_s,
            is_strict,
            rows,
        )

    async def wait(self, entry: QueueEntry, waiter: Waiter) -> None:
        """Until its turn; raises what ended the wait instead."""
        if entry.state is EntryState.WAITING:
            future = asyncio.get_running_loop().create_future()
            self._waiting[entry] = future, waiter
            waiter.attach(PendingTurn(future))
            self._look_again()
            try:
                await future
            finally:
                self._waiting.pop(entry, None)
        if waiter.cut_by is not None:
            raise waiter.cut_by.again()
        if entry.refusal is not None:
            raise self._refusal(entry.demand.tier, entry.refusal)

    async def give_way(self, entry: QueueEntry, rows_left: int, waiter: Waiter) -> None:
        """A list lets those go first whose turn it is, and goes on when it is its own again."""
        now_s = self.clock()
        self.taken_slots -= entry.sequences
        self._policy.give_way(entry, rows_left, now_s)
        self._hand_on(now_s)
        await self.wait(entry, waiter)

    def heard(self, entry: QueueEntry, now_s: float) -> None:
        self._policy.first_token(entry, now_s)
        if self._watcher is not None:
            self._watcher.heard(self, entry, now_s)
        if self._waiting:
            self._hand_on(now_s)

    def end(self, entry: QueueEntry, finished: bool, estimated_tokens: int, prompt_tokens: int) -> None:
        """From a whole answer it learns how far the estimate of prompt tokens is off."""
        now_s = self.clock()
        self.open_count -= 1
        if entry.state is EntryState.RUNNING:
            self.taken_slots -= entry.sequences
        if finished and estimated_tokens and prompt_tokens:
            ratio = min(max(prompt_tokens / estimated_tokens, _LEAST_RATIO), _MOST_RATIO)
            self._tokens_ratio += _RATIO_STEP * (ratio - self._tokens_ratio)
        self._policy.end(entry, now_s, finished)
        if self._waiting:
            self._hand_on(now_s)

    def cut_waiting(self, reason: InflightError) -> None:
        for _, waiter in list(self._waiting.values()):
            waiter.cut(reason)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _hand_on(self, now_s: float) -> None:
        for entry in self._policy.hand_on(now_s):
            if entry.is_running:
                self.taken_slots += entry.sequences
            found = self._waiting.get(entry)
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


class Turn:
    """One request at a gate, from its offer to its end; only the first call of `end` counts.

    `is_waiting` is False when its turn came with the offer: then there is nothing to await in `come`.
    """

    __slots__ = (
        "_entry",
        "_estimated_tokens",
        "_gate",
        "_has_ended",
        "_is_heard",
        "_record",
        "is_waiting",
        "weight",
    )

    def __init__(self, gate: Gate, entry: QueueEntry, record: Record, estimated_tokens: int) -> None:
        self._gate = gate
        self._entry = entry
        self._record = record
        self._estimated_tokens = estimated_tokens
        self._is_heard = self._has_ended = False
        self.is_waiting = entry.state is not EntryState.RUNNING
        self.weight = entry.weight  # its tenant's; 0 where slots are not shared by tenants

    async def come(self, waiter: Waiter) -> None:
        """Returns when it may go on; raises InflightError when it was cut, or timed out in the queue."""
        await self._gate.wait(self._entry, waiter)

    @property
    def slots(self) -> int:
        """Rows of a batch model that it may have in flight."""
        return self._entry.sequences

    @property
    def is_wanted(self) -> bool:
        """Whether others wait for theirs."""
        return self._gate.waiting_count > 0

    async def give_way(self, rows_left: int, waiter: Waiter) -> None:
        """For a list between its calls; raises as `come` does."""
        await self._gate.give_way(self._entry, rows_left, waiter)

    def heard(self, now_s: float) -> None:
        """For the first of its sequences that says something."""
        if not (self._is_heard or self._has_ended):
            self._is_heard = True
            self._gate.heard(self._entry, now_s)

    def end(self, finished: bool) -> None:
        if self._has_ended:
            return
        if finished and self._gate.is_fixed_cost:
            self.heard(self._gate.clock())
        self._has_ended = True
        self._gate.end(self._entry, finished, self._estimated_tokens, self._record.prompt_tokens)


def refusal_error(refused: Refused, chance: float) -> InflightError:
    """What the client is told; `chance` in 0..1 spreads the time to retry over 0.8 to 1.2 of it."""
    if refused.reason is Reason.TOO_LARGE:
        return InflightError(ErrorKind.TOO_LARGE, refused.message)
    retry_s = refused.retry_after_s
    if retry_s is not None:
        retry_s = max(retry_s, _LEAST_RETRY_S / 0.8) * (0.8 + 0.4 * chance)
    return InflightError(ErrorKind.OVERLOADED, refused.message, retry_after_s=retry_s)
