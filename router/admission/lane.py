"""The tenants of one tier that wait, in the order of what they have had, and what they have running.

Counters only grow, so a heap with outdated keys is enough: what comes to its top too early is put back.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from math import isclose
from typing import TYPE_CHECKING

from router.admission.allocation import Holdings, Tenant

if TYPE_CHECKING:
    from python_backend.wire.tiers import Tier


Listed = tuple[float, int, Tenant]


class Lane:
    """One tier: its tenants, and which of them is next."""

    def __init__(self, tier: Tier, weight: float, most_tenants: int) -> None:
        self.tier = tier
        self.weight = weight
        self.counter = 0.0
        self.floor = 0.0  # the counter of the tenant whose turn was last
        self.tenants: dict[str, Tenant] = {}
        self.waiting = 0
        self.waiting_us = 0
        self.running_us = 0  # what is still to come of those that run, as far as it is known
        self.waiting_tenants = 0
        self.waiting_weight = 0.0
        self.holdings = Holdings()
        self.heap: list[Listed] = []  # those that have something to begin, and some that had
        self._number = 0
        self._most_tenants = most_tenants
        self._sweep_at = most_tenants

    def new_tenant(self, name: str, weight: float) -> Tenant:
        tenant = self.tenants[name] = Tenant(name, weight)
        if len(self.tenants) > self._sweep_at:
            self._sweep(keep=tenant)
        return tenant

    @property
    def level(self) -> float:
        """Where a tenant that comes back begins at least: what it did not ask for is not owed to it."""
        first = self.first()
        return self.floor if first is None else first.counter

    def first(self) -> Tenant | None:
        """The one with the least counter of those that have something to begin."""
        heap = self.heap
        while heap:
            counter, number, tenant = heap[0]
            if not tenant.queue:
                heappop(heap)
                tenant.is_listed = False
            elif counter < tenant.counter:
                heapreplace(heap, (tenant.counter, number, tenant))
            else:
                return tenant
        return None

    def take_first(self) -> Listed:
        listed = heappop(self.heap)
        listed[2].is_listed = False
        return listed

    def put_back(self, listed: Listed) -> None:
        """Where it was: of those with the same counter, before the ones that came after it."""
        listed[2].is_listed = True
        heappush(self.heap, listed)

    def put(self, tenant: Tenant) -> None:
        """It has something to begin from now on."""
        if not tenant.is_listed:
            self._push(tenant)

    def forget_if_idle(self, tenant: Tenant) -> None:
        """Where the lift would bring its counter back anyway, nothing has to be kept."""
        if not tenant.waiting and not tenant.running and tenant.counter <= self.level:
            self.tenants.pop(tenant.name, None)

    def check(self) -> None:
        for tenant in self.tenants.values():
            entries = [*tenant.queue, *([] if tenant.aside is None else [tenant.aside])]
            assert tenant.waiting == len(entries)
            assert tenant.waiting_us == sum(entry.cost_us for entry in entries)
        waiting = [tenant for tenant in self.tenants.values() if tenant.waiting]
        assert self.waiting == sum(tenant.waiting for tenant in waiting)
        assert self.waiting_us == sum(tenant.waiting_us for tenant in waiting)
        assert self.waiting_tenants == len(waiting)
        assert isclose(self.waiting_weight, sum(tenant.weight for tenant in waiting), abs_tol=1e-6)
        self.holdings.check(list(self.tenants.values()))
        listed = [each[2] for each in self.heap]
        assert len(set(map(id, listed))) == len(listed)
        assert all(tenant.is_listed for tenant in listed)

    def _push(self, tenant: Tenant) -> None:
        self._number += 1
        tenant.is_listed = True
        heappush(self.heap, (tenant.counter, self._number, tenant))
        if len(self.heap) > 2 * self.waiting_tenants + 64:
            for _, _, each in self.heap:
                each.is_listed = bool(each.queue)
            self.heap = [listed for listed in self.heap if listed[2].is_listed]
            heapify(self.heap)

    def _sweep(self, keep: Tenant) -> None:
        """Of more idle tenants than are worth remembering, those that had least are forgotten."""
        idle = [each for each in self.tenants.values() if not each.waiting and not each.running]
        idle.sort(key=lambda tenant: tenant.counter)
        spare = len(idle) - self._most_tenants // 2
        for number, tenant in enumerate(idle):
            if tenant is not keep and (tenant.counter <= self.floor or number < spare):
                del self.tenants[tenant.name]
        self._sweep_at = max(self._most_tenants, 2 * len(self.tenants))
