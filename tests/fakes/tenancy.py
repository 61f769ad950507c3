"""Stands in for a tenancy: limits as they are, in memory, and a list of what was used."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import cast

from router.core.tenant import Caller, Price, UsageRecord
from router.tenants.ledger import Ledger, Reservation
from router.tenants.limits import Refusal
from router.tenants.tenancy import Tenancy


@dataclass
class _Catalogue:
    prices: dict[str, Price] = field(default_factory=dict)


@dataclass
class _Spool:
    is_full: bool = False


class FakeTenancy:
    """Answers a reservation after a moment, in which anything may happen."""

    def __init__(self) -> None:
        self.catalogue = _Catalogue()
        self.spool = _Spool()
        self.ledger = Ledger()
        self.used: list[UsageRecord] = []

    def reserve_now(
        self, caller: Caller, tokens: int, cost: int, requests: int = 1
    ) -> Reservation | Refusal | None:
        """The store is asked each time."""
        return None

    async def reserve(
        self, caller: Caller, tokens: int, cost: int, requests: int = 1
    ) -> Reservation | Refusal:
        await asyncio.sleep(0)
        return self.ledger.reserve(caller, tokens, cost, 0, "2026-11")

    def record(self, usage: UsageRecord) -> None:
        self.used.append(usage)

    @property
    def as_tenancy(self) -> Tenancy:
        return cast("Tenancy", self)
