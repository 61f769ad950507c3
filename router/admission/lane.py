"""The tenants of one tier that wait, in the order of what they have had, and what they have running.

Counters only grow, so a heap with outdated keys is enough: what comes to its top too early is put back.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappop, heappush, heapreplace
from math import isclose, sqrt
from typing import TYPE_CHECKING

from router.admission.pricing import BINS, SMALL_BINS, bin_of, top_of

if TYPE_CHECKING:
    from python_backend.wire.tiers import Tier
    from router.admission.demand import QueueEntry

_ROOTS = 2.0
# Weights are up to 1,000: sizes for a weight are told apart by this.
_FINE = 64


class Tenant:
    """What one tenant has waiting, has running and has had, in one tier."""

    __slots__ = (
        "aside",
        "bin",
        "counter",
        "is_listed",
        "name",
        "queue",
        "running",
        "size",
        "waiting",
        "waiting_us",
        "weight",
    )

    def __init__(self, name: str, weight: float) -> None:
        self.name = name
        self.weight = weight
        self.counter = 0.0
        self.queue: OrderedDict[QueueEntry, None] = OrderedDict()
        self.aside: QueueEntry | None = None  # its turn came, but it did not fit: others need not wait for it
        self.waiting = 0
        self.waiting_us = 0
        self.running = 0
        self.size = self.bin = 0  # in slots, of what runs
        self.is_listed = False


class Holdings:
    """What the tenants of one tier have running, in slots, by how much each has for its weight.

    From this follows the headroom that heavy tenants leave. What tenants have running goes up and down by
    about its root. So much is left, by those who have most, for those of their tier who have less: the less
    of it the further a tenant is from having most. A tenant alone in its tier leaves nothing.
    """

    def __init__(self) -> None:
        self._of_bin = [0] * BINS
        self._top = 0  # the bin of those who have most

    def add(self, tenant: Tenant, size: int) -> None:
        of_bin = self._of_bin
        of_bin[tenant.bin] -= tenant.size
        tenant.size += size
        fine = int(_FINE * tenant.size / tenant.weight)
        tenant.bin = found = SMALL_BINS[fine] if fine < len(SMALL_BINS) else bin_of(fine)
        of_bin[found] += tenant.size
        top = found if found > self._top else self._top
        while top and not of_bin[top]:
            top -= 1
        self._top = top

    def to_leave(self, tenant: Tenant) -> float:
        """How many slots it would have to leave free to take one more, if nobody could wait at all."""
        if not tenant.bin:
            return 0.0
        of_most = min(_FINE * tenant.size / tenant.weight / (top_of(self._top - 1) + 1), 1.0)
        return _ROOTS * sqrt(sum(self._of_bin[: tenant.bin])) * of_most * of_most

    def check(self, tenants: list[Tenant]) -> None:
        sizes = [0] * BINS
        for tenant in tenants:
            sizes[tenant.bin] += tenant.size
        assert self._of_bin == sizes
        assert self._top == max((tenant.bin for tenant in tenants if tenant.size), default=0)


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
