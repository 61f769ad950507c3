"""Stands in for a tenancy: limits as they are, in memory, and a list of what was used."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import cast

from router.core.tenant import Caller, Price, UsageRecord
from router.tenants.budget import CurrentMonth
from router.tenants.ledger import Ledger, Reservation
from router.tenants.limits import Limit, Refusal
from router.tenants.tenancy import Tenancy


@dataclass
class _Catalogue:
    prices: dict[str, Price] = field(default_factory=dict)

    def price_of(self, model: str) -> Price | None:
        return self.prices.get(model)


@dataclass
class _Spool:
    is_full: bool = False


class _EmptyLedger(Ledger):
    """The store is asked each time."""

    def reserve(
        self, caller: Caller, tokens: int, cost: int, now_ns: int, month: str, requests: int = 1
    ) -> Reservation | Refusal:
        return Refusal(Limit.LEASE, caller.key.id, 0)

    def reserve_leased(self, caller: Caller, tokens: int, cost: int) -> Reservation | Refusal:
        return super().reserve(caller, tokens, cost, 0, "2026-11")


class FakeTenancy:
    """Answers a reservation after a moment, in which anything may happen."""

    def __init__(self) -> None:
        self.catalogue = _Catalogue()
        self.spool = _Spool()
        self.month = CurrentMonth()
        self.ledger = _EmptyLedger()
        self.used: list[UsageRecord] = []

    async def reserve(
        self, caller: Caller, tokens: int, cost: int, requests: int = 1
    ) -> Reservation | Refusal:
        await asyncio.sleep(0)
        return self.ledger.reserve_leased(caller, tokens, cost)

    def record(self, usage: UsageRecord) -> None:
        self.used.append(usage)

    @property
    def as_tenancy(self) -> Tenancy:
        return cast("Tenancy", self)
