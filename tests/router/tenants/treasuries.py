"""A store of budgets in memory, with the rules of the real one and none of its SQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from router.core.tenant import UsageRecord
from router.tenants.budget import LEASE_S, LeaseAnswer, LeaseAsk, lease_size


@dataclass
class Books:
    """What all processes share: for one subject and one month."""

    spent: int = 0
    late: int = 0  # charged when the lease that should have paid was gone
    seen: set[str] = field(default_factory=set)
    leases: dict[str, tuple[int, float]] = field(default_factory=dict)

    def expire(self, now_s: float) -> None:
        self.leases = {name: lease for name, lease in self.leases.items() if lease[1] > now_s}

    @property
    def leased(self) -> int:
        return sum(amount for amount, _ in self.leases.values())


class FakeTreasury:
    def __init__(self, books: Books, process: str) -> None:
        self._books = books
        self._process = process

    def lease(self, ask: LeaseAsk, now_s: float) -> LeaseAnswer:
        self._books.expire(now_s)
        continued = self._process in self._books.leases
        amount = lease_size(
            ask.budget, self._books.spent, self._books.leased, ask.need if continued else ask.cost
        )
        if continued or amount:
            held, _ = self._books.leases.get(self._process, (0, 0.0))
            self._books.leases[self._process] = (held + amount, now_s + LEASE_S)
        return LeaseAnswer(amount, continued)

    def give_back(self, ask: LeaseAsk, now_s: float) -> None:
        self._books.expire(now_s)
        self._change(-ask.give_back)

    def charge(self, records: Sequence[UsageRecord]) -> int:
        new = [record for record in records if record.request_id not in self._books.seen]
        for record in new:
            self._books.seen.add(record.request_id)
            self._books.spent += record.cost
            if not self._change(-record.cost):
                self._books.late += record.cost
        return len(new)

    def _change(self, by: int) -> bool:
        if self._process not in self._books.leases:
            return False
        amount, expires_s = self._books.leases[self._process]
        self._books.leases[self._process] = (amount + by, expires_s)
        return True
