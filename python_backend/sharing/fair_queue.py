"""Whose turn it is at a few places that all tenants share: a decision, without threads or clocks.

Turns go round the tenants that wait, one each, and within a tenant they go by arrival. So what one tenant
piles up delays that tenant alone. Where there are several places, no tenant takes the last of them: whoever
comes next finds one free, however long the work of the others takes.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """`waiting_each` is how many may wait for one tenant."""

    def __init__(self, places: int, waiting_each: int) -> None:
        self._places = places
        self._places_each = max(1, places - 1)
        self._waiting_each = waiting_each
        self._lines: OrderedDict[str, deque[Item]] = OrderedDict()  # the one whose turn is next comes first
        self._taken: Counter[str] = Counter()
        self._resting: Counter[str] = Counter()

    def join(self, tenant: str, item: Item) -> bool:
        """False where this tenant's line is full."""
        line = self._lines.get(tenant, ())
        # Who can begin at once does not wait.
        free = min(self._places_each - self._taken[tenant], self._places - self._taken.total())
        if len(line) >= self._waiting_each + max(0, free):
            return False
        self._lines.setdefault(tenant, deque()).append(item)
        return True

    def leave(self, tenant: str, item: Item) -> bool:
        """Whether it was still waiting."""
        line = self._lines.get(tenant)
        if line is None or item not in line:
            return False
        line.remove(item)
        if not line:
            del self._lines[tenant]
        return True

    def next(self) -> tuple[str, Item] | None:
        """Takes a place for whoever's turn it is; None where nobody waits who may have one."""
        if self._taken.total() >= self._places:
            return None
        for tenant, line in self._lines.items():
            if self._taken[tenant] < self._places_each and not self._resting[tenant]:
                item = line.popleft()
                self._taken[tenant] += 1
                if line:
                    self._lines.move_to_end(tenant)
                else:
                    del self._lines[tenant]
                return tenant, item
        return None

    def done(self, tenant: str) -> None:
        """Gives a place back."""
        self._taken[tenant] -= 1
        if not self._taken[tenant]:
            del self._taken[tenant]

    def rest(self, tenant: str) -> None:
        """It gets no more places until `wake`, once for each time."""
        self._resting[tenant] += 1

    def wake(self, tenant: str) -> None:
        self._resting[tenant] -= 1
        if not self._resting[tenant]:
            del self._resting[tenant]

    def waiting(self, tenant: str) -> int:
        return len(self._lines.get(tenant, ()))

    def check(self) -> None:
        assert 0 <= self._taken.total() <= self._places, f"{self._taken.total()} of {self._places} taken"
        assert all(0 < taken <= self._places_each for taken in self._taken.values()), dict(self._taken)
        assert all(self._lines.values()), "a line without anybody in it"
