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
