"""How requests are admitted to one release: the interface of Dispatcher and FirstCome."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

from python_backend.wire.tiers import Tier
from router.admission.capacity import Capacity
from router.admission.demand import EntryState, QueueEntry
from router.admission.signals import Signals

if TYPE_CHECKING:
    from router.admission.demand import Demand, Progress, Refused


class Policy(Protocol):
    """Knows no clock: times are seconds on whatever clock its caller has, and never go back."""

    def resize(self, capacity: Capacity) -> None:
        """What the open replicas can do from now on. Before the first call there is no capacity."""

    def offer(self, demand: Demand, progress: Progress, now_s: float) -> QueueEntry | Refused:
        """An entry that waits (call `hand_on` next: its turn may have come already), or why it is refused."""

    def admit(self, demand: Demand, progress: Progress, now_s: float) -> QueueEntry | Refused:
        """As `offer`; but where nobody else waits and it may begin at once, the entry runs already.

        Else call `hand_on` next. It decides as `offer` and `hand_on` together would, in fewer steps.
        """

    def hand_on(self, now_s: float) -> list[QueueEntry]:
        """Those that waited until now: without a refusal they run from now on, else they have ended."""

    def first_token(self, entry: QueueEntry, now_s: float) -> None:
        """The first token of a running entry has come. Without effect at any other time."""

    def give_way(self, entry: QueueEntry, rows_left: int, now_s: float) -> None:
        """A running list of a batch model, of which so many rows are left, waits for its next turn again.

        It is not refused any more. Call `hand_on` next.
        """

    def end(self, entry: QueueEntry, now_s: float, finished: bool = True) -> None:
        """Releases all that the entry holds, in any state, once; `finished`: with a whole answer."""

    def signals(self, now_s: float) -> Signals:
        """The current state, for metrics and scaling."""

    def check(self) -> None:
        """Raises AssertionError where the sums are wrong; for tests."""


EVERYTHING = -1


class FirstCome:
    """A plain cap with a queue: it neither prices nor refuses, and ignores tiers, tenants and deadlines.

    `slots` is how many sequences may be in flight: 0 for as many as the engine has, EVERYTHING (-1) for no
    limit. A request that alone wants more than that runs alone.
    """

    def __init__(self, slots: int = 0) -> None:
        self._cap = slots
        self._capacity = Capacity(replicas=0, slots=0)
        self._waiting: OrderedDict[QueueEntry, None] = OrderedDict()
        self._running: dict[QueueEntry, None] = {}
        self._taken = 0

    def resize(self, capacity: Capacity) -> None:
        self._capacity = capacity

    def offer(self, demand: Demand, progress: Progress, now_s: float) -> QueueEntry | Refused:
        entry = QueueEntry(demand, progress, sequences=demand.sequences)
        self._waiting[entry] = None
        return entry

    def admit(self, demand: Demand, progress: Progress, now_s: float) -> QueueEntry | Refused:
        return self.offer(demand, progress, now_s)

    def hand_on(self, now_s: float) -> list[QueueEntry]:
        begun = []
        while self._waiting:
            entry = next(iter(self._waiting))
            if not self._has_room(entry.sequences):
                break
            del self._waiting[entry]
            self._running[entry] = None
            self._taken += entry.sequences
            entry.state, entry.begun_s = EntryState.RUNNING, now_s
            begun.append(entry)
        return begun

    def first_token(self, entry: QueueEntry, now_s: float) -> None:
        if entry.is_running and entry.first_token_s is None:
            entry.first_token_s = now_s

    def give_way(self, entry: QueueEntry, rows_left: int, now_s: float) -> None:
        del self._running[entry]
        self._taken -= entry.sequences
        entry.state = EntryState.WAITING
        self._waiting[entry] = None

    def end(self, entry: QueueEntry, now_s: float, finished: bool = True) -> None:
        if entry.state is EntryState.WAITING:
            del self._waiting[entry]
        elif entry.state is EntryState.RUNNING:
            del self._running[entry]
            self._taken -= entry.sequences
        entry.state = EntryState.ENDED

    def signals(self, now_s: float) -> Signals:
        waiting = dict.fromkeys(Tier, 0)
        for entry in self._waiting:
            waiting[entry.demand.tier] += 1
        return Signals(
            drain_s=None,
            risk=dict.fromkeys(Tier, 0.0),
            waiting=waiting,
            running=len(self._running),
            kv_budget_tokens=self._capacity.kv_tokens,
        )

    def check(self) -> None:
        assert self._taken == sum(entry.sequences for entry in self._running)
        assert all(entry.state is EntryState.WAITING for entry in self._waiting)
        assert all(entry.state is EntryState.RUNNING for entry in self._running)

    def _has_room(self, sequences: int) -> bool:
        if self._cap == EVERYTHING:
            return True
        slots = self._cap or self._capacity.slots_here
        return self._taken + sequences <= slots or (self._taken == 0 and slots > 0)
