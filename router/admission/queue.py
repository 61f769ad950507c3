"""Whose turn it is: the tier and then the tenant that has had least for its weight.

A virtual counter at each of two levels, of tiers and of the tenants in a tier: service is charged as it is
given, the prompt when it begins and tokens as they come, divided by weight; the least counter is next. Who
comes back from idleness is lifted to the least of those who wait, so nobody saves up. Two who both wait all
the time are never further apart than by what can be under way at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from python_backend.wire.tiers import Tier
from router.admission.forecast import Queue
from router.admission.lane import Lane

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from router.admission.demand import Demand, Place
    from router.admission.lane import Entry, Tenant

TIER_WEIGHTS = {Tier.INTERACTIVE: 0.6, Tier.STANDARD: 0.3, Tier.BATCH: 0.1}
# Past those whose first request does not fit at the moment, so many others are looked at.
_LOOKS = 8


class Shares(Protocol):
    """What each tenant is entitled to, as its plan says."""

    def weight(self, tenant: str) -> float:
        """More than 0: a tenant of weight 2 gets twice the service of one of weight 1 when both want it."""

    def slot_share(self, tenant: str) -> float:
        """The part of all places, in (0, 1], that it may have at one time, even when others want none."""


class EqualShares:
    """Everybody the same, and nobody limited."""

    def weight(self, tenant: str) -> float:
        return 1.0

    def slot_share(self, tenant: str) -> float:
        return 1.0


class Turns:
    """All that wait at a release, in fair order. Knows nothing of what the engine has room for."""

    def __init__(self, shares: Shares, weights: Mapping[Tier, float], most_tenants: int = 4096) -> None:
        self._shares = shares
        self.lanes = [Lane(tier, weights[tier], most_tenants) for tier in Tier]
        self.waiting = 0
        self._places = 0
        self._held_by: dict[str, int] = {}  # sequences under way of each tenant, in all tiers
        self._parked: dict[str, list[tuple[Lane, Tenant]]] = {}  # those at their limit of places

    def resize(self, places: int) -> None:
        if places != self._places:
            self._places = places
            for name in list(self._parked):
                self._unpark(name)

    def join(self, place: Place) -> None:
        """At the end of its tenant's queue."""
        demand = place.demand
        lane = self.lanes[demand.tier]
        tenant = lane.tenant(demand.tenant, self._shares.weight(demand.tenant))
        if not tenant.waiting:
            lane.waiting_tenants += 1
            lane.waiting_weight += tenant.weight
        if not lane.waiting:  # the same for tiers: what it did not want is not owed to it
            lane.counter = max(lane.counter, self._least_counter())
        if tenant.queue or self._is_parked(tenant):
            tenant.queue[place] = None
        else:
            tenant.counter = max(tenant.counter, lane.level)
            tenant.queue[place] = None
            lane.put(tenant)
        tenant.waiting += 1
        tenant.waiting_us += place.cost_us
        lane.waiting += 1
        lane.waiting_us += place.cost_us
        self.waiting += 1

    def leave(self, place: Place) -> None:
        """It waits no more."""
        lane = self.lanes[place.demand.tier]
        tenant = lane.tenants[place.demand.tenant]
        if tenant.aside is place:
            tenant.aside = None
        else:
            del tenant.queue[place]
        tenant.waiting -= 1
        tenant.waiting_us -= place.cost_us
        lane.waiting -= 1
        lane.waiting_us -= place.cost_us
        self.waiting -= 1
        if not tenant.waiting:
            lane.waiting_tenants -= 1
            lane.waiting_weight = lane.waiting_weight - tenant.weight if lane.waiting_tenants else 0.0
            if tenant.name in self._parked:
                self._forget_parked(tenant)
            lane.forget_if_idle(tenant)

    def set_aside(self, place: Place) -> None:
        """Keeps its claim, but those behind it in its tenant's queue may pass."""
        tenant = self.lanes[place.demand.tier].tenants[place.demand.tenant]
        del tenant.queue[place]
        tenant.aside = place

    def next(self, is_open: Callable[[Tier], bool], fits: Callable[[Place], bool]) -> Place | None:
        """The first in turn that fits, of the open tiers; it stays until it is told to leave."""
        for lane in sorted(self.lanes, key=_counter):
            if lane.waiting and is_open(lane.tier):
                place = self._next_of(lane, fits)
                if place is not None:
                    return place
        return None

    def begin(self, place: Place) -> None:
        """It waits no more, and has places of the engine from now on."""
        name = place.demand.tenant
        lane = self.lanes[place.demand.tier]
        tenant = lane.tenants[name]
        tenant.running += 1
        lane.holdings.add(tenant, place.size)
        lane.floor = max(lane.floor, tenant.counter)
        self.leave(place)
        self._held_by[name] = self._held_by.get(name, 0) + place.sequences

    def end(self, place: Place) -> None:
        name = place.demand.tenant
        lane = self.lanes[place.demand.tier]
        tenant = lane.tenants[name]
        tenant.running -= 1
        lane.holdings.add(tenant, -place.size)
        left = self._held_by[name] - place.sequences
        if left:
            self._held_by[name] = left
        else:
            del self._held_by[name]
        if name in self._parked:
            self._unpark(name)
        lane.forget_if_idle(tenant)

    def charge(self, place: Place, service_us: int) -> Lane:
        """For service that a running place was given; tells where it was charged."""
        lane = self.lanes[place.demand.tier]
        tenant = lane.tenants[place.demand.tenant]
        tenant.counter += service_us / tenant.weight
        lane.counter += service_us / lane.weight
        return lane

    def to_leave(self, place: Place) -> float:
        """So many places its tenant has to leave free for those who have less."""
        lane = self.lanes[place.demand.tier]
        tenant = lane.tenants.get(place.demand.tenant)
        return 0.0 if tenant is None else lane.holdings.to_leave(tenant)

    def is_at_limit(self, place: Place) -> bool:
        """Whether its tenant has all the places that it may have; one request it may always have."""
        held = self._held_by.get(place.demand.tenant, 0)
        if not held:
            return False
        return held + place.sequences > self._shares.slot_share(place.demand.tenant) * self._places

    @property
    def waiting_tenants(self) -> int:
        return sum(lane.waiting_tenants for lane in self.lanes)

    def waiting_of(self, demand: Demand) -> int:
        tenant = self.lanes[demand.tier].tenants.get(demand.tenant)
        return 0 if tenant is None else tenant.waiting

    def queue_for(self, place: Place) -> Queue:
        """What would be ahead of a request that joined now."""
        lane = self.lanes[place.demand.tier]
        weight = self._shares.weight(place.demand.tenant)
        tenant = lane.tenants.get(place.demand.tenant)
        own_us, of_all = 0, lane.waiting_weight + weight
        if tenant is not None and tenant.waiting:
            own_us, weight, of_all = tenant.waiting_us, tenant.weight, lane.waiting_weight
        lead = 0.0 if tenant is None else max(tenant.counter - lane.level, 0.0)
        others_here = lane.waiting_tenants - (own_us > 0)
        lead_us, most_share = self._lead_us(lane)
        return Queue(
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

    def check(self, running: list[Place]) -> None:
        held: dict[str, int] = {}
        for place in running:
            held[place.demand.tenant] = held.get(place.demand.tenant, 0) + place.sequences
        assert self._held_by == held
        for lane in self.lanes:
            lane.check()
        assert self.waiting == sum(lane.waiting for lane in self.lanes)
        under_way = sum(tenant.running for lane in self.lanes for tenant in lane.tenants.values())
        assert under_way == len(running)
        for name, entries in self._parked.items():
            assert name in self._held_by
            assert all(not tenant.is_listed or not tenant.queue for _, tenant in entries)

    def _lead_us(self, lane: Lane) -> tuple[float, float]:
        """What others get before it is this tier's turn again, counting what it has under way; its share."""
        mine = lane.counter + lane.running_us / lane.weight
        lead_us, weights = 0.0, lane.weight
        for other in self.lanes:
            if other is not lane and other.waiting:
                theirs = other.counter + other.running_us / other.weight
                weights += other.weight
                if mine > theirs:
                    lead_us += (mine - theirs) * other.weight
        return lead_us, lane.weight / weights

    def _least_counter(self) -> float:
        waiting = [lane.counter for lane in self.lanes if lane.waiting]
        return min(waiting) if waiting else max(lane.counter for lane in self.lanes)

    def _next_of(self, lane: Lane, fits: Callable[[Place], bool]) -> Place | None:
        passed: list[Entry] = []
        found = None
        while len(passed) < _LOOKS:
            tenant = lane.first()
            if tenant is None:
                break
            place = next(iter(tenant.queue))
            if self.is_at_limit(place):
                lane.take_first()
                self._parked.setdefault(tenant.name, []).append((lane, tenant))
                continue
            if fits(place):
                found = place
                break
            passed.append(lane.take_first())
        for entry in passed:
            lane.put_back(entry)
        return found

    def _is_parked(self, tenant: Tenant) -> bool:
        return any(each is tenant for _, each in self._parked.get(tenant.name, ()))

    def _forget_parked(self, tenant: Tenant) -> None:
        others = [entry for entry in self._parked.pop(tenant.name) if entry[1] is not tenant]
        if others:
            self._parked[tenant.name] = others

    def _unpark(self, name: str) -> None:
        for lane, tenant in self._parked.pop(name):
            if tenant.queue:
                tenant.counter = max(tenant.counter, lane.level)
                lane.put(tenant)


def _counter(lane: Lane) -> float:
    return lane.counter
