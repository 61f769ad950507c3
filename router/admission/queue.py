"""Whose turn it is: the tier and then the tenant that has had least for its weight.

A virtual counter at each of two levels, of tiers and of the tenants in a tier: service is charged as it is
given, the prompt when it begins and tokens as they come, divided by weight; the least counter is next. Who
comes back from idleness is lifted to the least of those who wait, so nobody saves up. Two who both wait all
the time are never further apart than by what can be in flight at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from python_backend.sharing.places import GUARANTEES
from python_backend.wire.tiers import Tier
from router.admission.lane import Lane

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from router.admission.allocation import Tenant
    from router.admission.demand import Demand, QueueEntry
    from router.admission.lane import Listed

TIER_WEIGHTS = GUARANTEES
# Past those whose first request does not fit at the moment, so many others are looked at.
_LOOKS = 8


class Shares(Protocol):
    """What each tenant is entitled to, as its plan says."""

    def weight(self, tenant: str) -> float:
        """More than 0: a tenant of weight 2 gets twice the service of one of weight 1 when both want it."""

    def slot_share(self, tenant: str) -> float:
        """The share of all slots, in (0, 1], that it may have at one time, even when others want none."""


class EqualShares:
    """All tenants alike, and none limited."""

    def weight(self, tenant: str) -> float:
        return 1.0

    def slot_share(self, tenant: str) -> float:
        return 1.0


@dataclass(slots=True)  # not frozen: one is made for each request that has to wait
class Ahead:
    """What is ahead of a request that has to wait, in microseconds of engine time; weights of who waits.

    `round_us` is one request of each other tenant that waits in its tier. `lead_us` is what the other tiers
    are given first because its own has recently had more than its share, `own_lead_us` the same for the
    other tenants of its tier.
    """

    tier_us: int
    own_us: int
    round_us: float
    weight: float
    weight_of_all: float
    lead_us: float = 0.0
    own_lead_us: float = 0.0
    guarantee: float = 1.0  # of its tier, and the most that it gets beside the tiers that wait as well
    most_share: float = 1.0

    @property
    def work_us(self) -> float:
        """A flood of others counts only as far as fair turns let it come first."""
        turns_us = self.own_us * self.weight_of_all / self.weight + self.round_us + self.own_lead_us
        return max(min(float(self.tier_us), turns_us), 0.0)


class FairQueue:
    """All that wait for a release, in fair order. Knows nothing of the engine's capacity."""

    def __init__(self, shares: Shares, weights: Mapping[Tier, float], most_tenants: int = 4096) -> None:
        self._shares = shares
        self.lanes = [Lane(tier, weights[tier], most_tenants) for tier in Tier]
        self.waiting = 0
        self._slots = 0
        self.held_by: dict[str, int] = {}  # running sequences of each tenant, in all tiers
        self._parked: dict[str, list[tuple[Lane, Tenant]]] = {}  # those at their limit of slots

    def resize(self, slots: int) -> None:
        if slots != self._slots:
            self._slots = slots
            for name in list(self._parked):
                self._unpark(name)

    def lift(self, demand: Demand, weight: float) -> Tenant:
        """Its tenant, where it is to stand in the queue: what it did not ask for is not owed to it."""
        lane = self.lanes[demand.tier]
        tenant = lane.tenants.get(demand.tenant)
        if tenant is None:
            tenant = lane.new_tenant(demand.tenant, weight)
        elif not tenant.waiting:
            tenant.weight = weight
        if not lane.waiting:  # the same for tiers
            if self.waiting:
                lane.counter = max(lane.counter, min(each.counter for each in self.lanes if each.waiting))
            else:
                for other in self.lanes:
                    if other.counter > lane.counter:
                        lane.counter = other.counter
        if not (tenant.waiting and (tenant.queue or self._is_parked(tenant))):
            level = lane.level if lane.heap else lane.floor
            if tenant.counter < level:
                tenant.counter = level
        return tenant

    def join(self, entry: QueueEntry, tenant: Tenant) -> None:
        """At the end of its tenant's queue, which was lifted."""
        lane = self.lanes[entry.demand.tier]
        if not tenant.waiting:
            lane.waiting_tenants += 1
            lane.waiting_weight += tenant.weight
        is_listed = bool(tenant.queue) or self._is_parked(tenant)
        tenant.queue[entry] = None
        if not is_listed:
            lane.put(tenant)
        tenant.waiting += 1
        tenant.waiting_us += entry.cost_us
        lane.waiting += 1
        lane.waiting_us += entry.cost_us
        self.waiting += 1

    def leave(self, entry: QueueEntry) -> None:
        """It waits no more."""
        lane = self.lanes[entry.demand.tier]
        tenant = lane.tenants[entry.demand.tenant]
        if tenant.aside is entry:
            tenant.aside = None
        else:
            del tenant.queue[entry]
        tenant.waiting -= 1
        tenant.waiting_us -= entry.cost_us
        lane.waiting -= 1
        lane.waiting_us -= entry.cost_us
        self.waiting -= 1
        if not tenant.waiting:
            lane.waiting_tenants -= 1
            lane.waiting_weight = lane.waiting_weight - tenant.weight if lane.waiting_tenants else 0.0
            if tenant.name in self._parked:
                self._forget_parked(tenant)
            lane.forget_if_idle(tenant)

    def set_aside(self, entry: QueueEntry) -> None:
        """Keeps its claim, but those behind it in its tenant's queue may pass."""
        tenant = self.lanes[entry.demand.tier].tenants[entry.demand.tenant]
        del tenant.queue[entry]
        tenant.aside = entry

    def next(self, is_open: Callable[[Tier], bool], fits: Callable[[QueueEntry], bool]) -> QueueEntry | None:
        """The first in turn that fits, of the open tiers; it stays until it is told to leave."""
        for lane in sorted(self.lanes, key=_counter):
            if lane.waiting and is_open(lane.tier):
                entry = self._next_of(lane, fits)
                if entry is not None:
                    return entry
        return None

    def begin(self, entry: QueueEntry) -> None:
        """It waits no more, and runs from now on."""
        lane = self.lanes[entry.demand.tier]
        self.run(entry, lane.tenants[entry.demand.tenant])
        self.leave(entry)

    def run(self, entry: QueueEntry, tenant: Tenant) -> None:
        """It runs from now on; of one that need not wait, whose tenant was lifted."""
        lane = self.lanes[entry.demand.tier]
        tenant.running += 1
        lane.holdings.add(tenant, entry.size)
        if lane.floor < tenant.counter:
            lane.floor = tenant.counter
        self.held_by[tenant.name] = self.held_by.get(tenant.name, 0) + entry.sequences

    def end(self, entry: QueueEntry) -> None:
        name = entry.demand.tenant
        lane = self.lanes[entry.demand.tier]
        tenant = lane.tenants[name]
        tenant.running -= 1
        lane.holdings.add(tenant, -entry.size)
        left = self.held_by[name] - entry.sequences
        if left:
            self.held_by[name] = left
        else:
            del self.held_by[name]
        if name in self._parked:
            self._unpark(name)
        if not tenant.running and (lane.heap or tenant.counter <= lane.floor):
            lane.forget_if_idle(tenant)

    def charge(self, entry: QueueEntry, service_us: int) -> int:
        """For service that a running entry was given; returns how much less of it remains."""
        lane = self.lanes[entry.demand.tier]
        tenant = lane.tenants[entry.demand.tenant]
        tenant.counter += service_us / tenant.weight
        lane.counter += service_us / lane.weight
        done_us = service_us if service_us < entry.remaining_us else entry.remaining_us
        entry.remaining_us -= done_us
        lane.running_us -= done_us
        return done_us

    def to_leave(self, entry: QueueEntry) -> float:
        """How many slots its tenant has to leave free for those who have less."""
        lane = self.lanes[entry.demand.tier]
        tenant = lane.tenants.get(entry.demand.tenant)
        return 0.0 if tenant is None else lane.holdings.to_leave(tenant)

    def is_at_limit(self, entry: QueueEntry) -> bool:
        """Whether its tenant has all the slots that it may have; one request it may always have."""
        held = self.held_by.get(entry.demand.tenant, 0)
        if not held:
            return False
        share = self._shares.slot_share(entry.demand.tenant)
        if entry.is_light and share >= 1.0:  # others' are paused for it, however many that takes
            return False
        return held + entry.sequences > share * self._slots

    @property
    def waiting_tenants(self) -> int:
        return sum(lane.waiting_tenants for lane in self.lanes)

    def waiting_of(self, demand: Demand) -> int:
        tenant = self.lanes[demand.tier].tenants.get(demand.tenant)
        return 0 if tenant is None else tenant.waiting

    def own_us(self, demand: Demand) -> int:
        """What its tenant has waiting in its tier."""
        tenant = self.lanes[demand.tier].tenants.get(demand.tenant)
        return 0 if tenant is None else tenant.waiting_us

    def ahead_of(self, entry: QueueEntry) -> Ahead:
        """What would be ahead of a request that joined now."""
        lane = self.lanes[entry.demand.tier]
        weight = self._shares.weight(entry.demand.tenant)
        tenant = lane.tenants.get(entry.demand.tenant)
        own_us, of_all = 0, lane.waiting_weight + weight
        if tenant is not None and tenant.waiting:
            own_us, weight, of_all = tenant.waiting_us, tenant.weight, lane.waiting_weight
        lead = 0.0 if tenant is None else max(tenant.counter - lane.level, 0.0)
        others_here = lane.waiting_tenants - (own_us > 0)
        lead_us, most_share = self._lead_us(lane)
        return Ahead(
            tier_us=lane.waiting_us,
            own_us=own_us,
            round_us=others_here * lane.waiting_us / max(lane.waiting, 1),
            weight=weight,
            weight_of_all=of_all,
            lead_us=lead_us,
            own_lead_us=lead * (of_all - weight),
            guarantee=lane.weight,
            most_share=most_share,
        )

    def check(self, running: list[QueueEntry]) -> None:
        held: dict[str, int] = {}
        for entry in running:
            held[entry.demand.tenant] = held.get(entry.demand.tenant, 0) + entry.sequences
        assert self.held_by == held
        for lane in self.lanes:
            lane.check()
        assert self.waiting == sum(lane.waiting for lane in self.lanes)
        in_flight = sum(tenant.running for lane in self.lanes for tenant in lane.tenants.values())
        assert in_flight == len(running)
        for name, parked in self._parked.items():
            assert name in self.held_by
            assert all(not tenant.is_listed or not tenant.queue for _, tenant in parked)

    def _lead_us(self, lane: Lane) -> tuple[float, float]:
        """What others get before it is this tier's turn again, counting what it has running; its share."""
        mine = lane.counter + lane.running_us / lane.weight
        lead_us, weights = 0.0, lane.weight
        for other in self.lanes:
            if other is not lane and other.waiting:
                theirs = other.counter + other.running_us / other.weight
                weights += other.weight
                if mine > theirs:
                    lead_us += (mine - theirs) * other.weight
        return lead_us, lane.weight / weights

    def _next_of(self, lane: Lane, fits: Callable[[QueueEntry], bool]) -> QueueEntry | None:
        passed: list[Listed] = []
        found = None
        while len(passed) < _LOOKS:
            tenant = lane.first()
            if tenant is None:
                break
            entry = next(iter(tenant.queue))
            if self.is_at_limit(entry):
                lane.take_first()
                self._parked.setdefault(tenant.name, []).append((lane, tenant))
                continue
            if fits(entry):
                found = entry
                break
            passed.append(lane.take_first())
        for listed in passed:
            lane.put_back(listed)
        return found

    def _is_parked(self, tenant: Tenant) -> bool:
        return any(each is tenant for _, each in self._parked.get(tenant.name, ()))

    def _forget_parked(self, tenant: Tenant) -> None:
        others = [parked for parked in self._parked.pop(tenant.name) if parked[1] is not tenant]
        if others:
            self._parked[tenant.name] = others

    def _unpark(self, name: str) -> None:
        for lane, tenant in self._parked.pop(name):
            if tenant.queue:
                tenant.counter = max(tenant.counter, lane.level)
                lane.put(tenant)


def _counter(lane: Lane) -> float:
    return lane.counter
