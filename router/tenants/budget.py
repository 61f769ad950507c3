"""A monthly budget shared by several routers: each spends from its own lease, and all leases fit the budget.

The invariant: spent + leased <= budget, in the store, at every moment. A router reserves from its lease
without asking anybody. A delivered usage record moves its cost from the lease to what is spent, in one
transaction. A lease that its router does not extend expires in the store; the router stops using it well
before that by its own monotonic clock, so clocks may differ by the time between the two."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import lru_cache

LEASE_S = 120.0
USABLE_S = 80.0  # leaves room for clocks 30 s apart and a slow answer
RENEW_S = 20.0
_ASK_AGAIN_S = 2.0
_NS_PER_S = 1_000_000_000
# Small enough that a few routers share the last of a budget, large enough to ask seldom.
_SHARE_OF_REST = 16


def lease_size(budget: int, spent: int, leased: int, need: int) -> int:
    """What a router that needs this much is leased: some more, never beyond the budget, or nothing."""
    rest = budget - spent - leased
    return max(need, rest // _SHARE_OF_REST) if 0 < need <= rest else 0


@dataclass(frozen=True, slots=True)
class LeaseAsk:
    """What the store is asked for: the lease extended, and by how much it must grow.

    `need` is missing where the lease still stands; `cost` where it turns out to be gone. `give_back` is
    returned instead.
    """

    subject: str
    month: str
    budget: int
    need: int = 0
    cost: int = 0
    give_back: int = 0


@dataclass(frozen=True, slots=True)
class LeaseAnswer:
    """How much the lease grew; `continued` is False where an earlier one had run out or never was."""

    amount: int
    continued: bool


class Allowance:
    """What one router may still spend of a subject's budget this month; belongs to the event loop."""

    __slots__ = (
        "_asked_in_vain_ns",
        "_idle",
        "_renew_ns",
        "_usable_ns",
        "_vain_need",
        "budget",
        "free",
        "lease",
        "month",
        "reserved",
        "subject",
    )

    def __init__(self, subject: str, budget: int) -> None:
        self.subject = subject
        self.budget = budget
        self.month = ""
        self.lease = 0  # counts leases: what belongs to an older one is not given back to a newer
        self.free = 0
        self.reserved = 0
        self._usable_ns = self._renew_ns = 0
        self._asked_in_vain_ns = 0
        self._vain_need = 0
        self._idle = False

    def change(self, budget: int) -> None:
        self.budget = budget
        self._asked_in_vain_ns = 0

    def covers(self, cost: int, now_ns: int, month: str) -> bool:
        return cost <= self.free and now_ns < self._usable_ns and month == self.month

    def is_spent(self, cost: int, now_ns: int, month: str) -> bool:
        """Whether the store answered recently that less than this is left."""
        return month == self.month and now_ns < self._asked_in_vain_ns and cost - self.free >= self._vain_need

    def take(self, cost: int) -> int:
        """Reserves; the answer names the lease and goes back with `end`."""
        self._idle = False
        self.free -= cost
        self.reserved += cost
        return self.lease

    def end(self, lease: int, reserved: int, spent: int) -> None:
        """One reservation is over; what it did not spend is free again, if its lease still stands."""
        self.reserved -= reserved
        if lease == self.lease:
            self.free += reserved - spent

    def ask(self, cost: int, month: str) -> LeaseAsk:
        """What to ask the store for, so that a request of this cost can start."""
        need = max(cost - self.free, 0) if month == self.month else cost
        return LeaseAsk(self.subject, month, self.budget, need, cost)

    def granted(self, ask: LeaseAsk, answer: LeaseAnswer, asked_ns: int) -> None:
        """The store's answer; `asked_ns` is from before it was asked."""
        if not answer.continued or ask.month != self.month:
            self.lease += 1
            self.free = 0
        self.month = ask.month
        self.free += answer.amount
        self._usable_ns = asked_ns + int(USABLE_S * _NS_PER_S)
        self._renew_ns = asked_ns + int(RENEW_S * _NS_PER_S)
        if answer.amount < (ask.need if answer.continued else ask.cost):
            self._asked_in_vain_ns = asked_ns + int(_ASK_AGAIN_S * _NS_PER_S)
            self._vain_need = ask.need if answer.continued else ask.cost

    def upkeep(self, now_ns: int) -> LeaseAsk | None:
        """Now and then: extends a lease in use, returns one that nobody used since the last time."""
        if not self.month or now_ns < self._renew_ns:
            return None
        if self._idle and not self.reserved:
            return self.give_back()
        self._idle = True
        self._renew_ns = now_ns + int(RENEW_S * _NS_PER_S)
        return LeaseAsk(self.subject, self.month, self.budget)

    def give_back(self) -> LeaseAsk | None:
        """Lets go of all that is free: from here on it can be spent elsewhere only."""
        amount, self.free = max(self.free, 0), 0
        month, self.month = self.month, ""
        self.lease += 1
        return LeaseAsk(self.subject, month, self.budget, give_back=amount) if amount else None

    def check(self) -> None:
        assert self.reserved >= 0, f"{self.subject}: {self.reserved} reserved"


END_OF_TIME_S = 253_402_300_800.0  # the year 10000: what is later cannot be shown as a date


def check_day(what: str, day: str) -> None:
    try:
        is_day = day == datetime.strptime(day, "%Y-%m-%d").strftime("%Y-%m-%d")
    except ValueError:
        is_day = False
    if not is_day:
        raise ValueError(f"{what}: expected a day as YYYY-MM-DD, got {day[:20]!r}")


_DAY_S = 86_400


def day_of(at_s: float) -> str:
    return _name_of_day(int(at_s // _DAY_S))


@lru_cache(maxsize=64)
def _name_of_day(number: int) -> str:
    """Every usage record asks for the same few."""
    return datetime.fromtimestamp(number * _DAY_S, timezone.utc).strftime("%Y-%m-%d")


def month_of(at_s: float) -> str:
    return day_of(at_s)[:7]


def month_end_s(at_s: float) -> float:
    """When the month that holds this moment is over."""
    first = datetime.fromtimestamp(at_s, timezone.utc).replace(
        day=1, hour=0, minute=0, second=0, microsecond=0
    )
    return (first + timedelta(days=32)).replace(day=1).timestamp()


class CurrentMonth:
    """The name of the current month, worked out again only when another one begins."""

    def __init__(self) -> None:
        self.name = ""
        self.begins_s = self.ends_s = 0.0

    def at(self, now_s: float) -> str:
        if not self.begins_s <= now_s < self.ends_s:
            self.name = month_of(now_s)
            self.begins_s, self.ends_s = now_s, month_end_s(now_s)
        return self.name
