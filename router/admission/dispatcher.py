"""Lets requests in to one release: priced, in fair order, or refused before it hurts.

A request is refused at once when its first token would come too late, so that the engine computes nothing
that nobody waits for any more. Else it waits, in fair turns, until the engine has a place and the cache that
it is expected to need; nothing is preempted for it. When its turn comes its deadline is looked at again. A
tenant that has much under way leaves the last of the room to those that have less.

One whose turn it is but which does not fit yet is set aside. Smaller ones may pass it for a short while; then
what becomes free is kept for it, so it cannot starve. Only better tiers within their guarantee still pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from python_backend.wire.tiers import Tier
from router.admission.demand import Place, PlaceState, Reason, Refused, Wait
from router.admission.forecast import Engine, Forecaster
from router.admission.headroom import Restraint
from router.admission.pricing import kv_need, least_kv, per_sequence
from router.admission.queue import TIER_WEIGHTS, Turns
from router.admission.room import Room
from router.admission.running import UnderWay
from router.admission.signals import Faded, Load, Neighbours, Risk, Scaling, Signals

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router.admission.demand import Capacity, Demand, Progress
    from router.admission.pricing import OutputLengths
    from router.admission.queue import Shares

_SOON_S = 1.0


@dataclass(frozen=True, slots=True)
class DispatchSettings:
    """What may be set for comparison; the defaults are what is served with."""

    tier_weights: Mapping[Tier, float] = field(default_factory=lambda: TIER_WEIGHTS)
    kv_share: float = 0.9  # of the cache is given out; the rest is for answers longer than foretold
    borrow_cap: float = 0.85  # of all that there is may be taken by tiers beyond their guarantee
    most_waiting: int = 10_000  # requests, however patient they are
    pass_s: float = 0.25  # so long smaller requests may pass one that does not fit yet
    stretch: float = 1.25  # of the time that a prompt takes alone, it gets at least


SERVED_WITH = DispatchSettings()


class Dispatcher:
    """The queue of one release: see Policy for what each method promises."""

    def __init__(
        self, shares: Shares, lengths: OutputLengths, settings: DispatchSettings = SERVED_WITH
    ) -> None:
        self._shares = shares
        self._lengths = lengths
        self._settings = settings
        self._room = Room(settings.tier_weights, settings.borrow_cap, settings.kv_share)
        self._turns = Turns(shares, settings.tier_weights)
        self._under_way = UnderWay(self._room, self._turns, lengths)
        self._patience_s: dict[Tier, float] = {}
        self._restraint = Restraint(self._room, self._turns, self._under_way, self._patience_s)
        self._forecaster = Forecaster()
        self._deadlines: list[tuple[float, int, Place]] = []
        self._number = 0
        self._held: Place | None = None
        self._held_since_s = 0.0
        self._neighbours = Neighbours()
        self._risk = [Risk() for _ in Tier]
        self._offered = Faded()
        self._scaling = Scaling()

    def resize(self, capacity: Capacity) -> None:
        self._room.resize(capacity)
        self._turns.resize(capacity.places_here)
        self._under_way.resize(capacity)

    def offer(self, demand: Demand, progress: Progress, now_s: float) -> Place | Refused:
        self._room.asked(demand.tier, now_s)
        self._patience_s[demand.tier] = demand.deadline_s - demand.arrived_s
        place = self._priced(demand, progress, now_s)
        self._offered.add(place.cost_us, now_s)
        self._neighbours.offered(demand.tenant, self._shares.weight(demand.tenant), place.cost_us, now_s)
        refusal = self._too_large(place) or self._too_many(place) or self._too_late(place, now_s)
        if refusal is not None:
            place.state = PlaceState.ENDED
            return refusal
        if place.wait is not Wait.NONE:
            self._neighbours.waits(demand.tenant, now_s)
        if place.wait is Wait.HELD_BACK:
            self._neighbours.spared(now_s)
        self._turns.join(place)
        self._expire_at(place)
        return place

    def hand_on(self, now_s: float) -> list[Place]:
        handed = self._expired(now_s)
        if not self._turns.waiting:
            return handed
        self._under_way.look(now_s)
        self._room.look(now_s)
        while not self._room.is_full:
            place = self._next(now_s)
            if place is None:
                break
            if not self._is_lost(place, now_s):
                self._begin(place, now_s)
            handed.append(place)
        return handed

    def first_token(self, place: Place, now_s: float) -> None:
        if place.is_running and place.first_token_s is None:
            place.first_token_s = now_s
            self._under_way.prefilled(place)
            self._forecaster.came_true(place, now_s)

    def end(self, place: Place, now_s: float, finished: bool = True) -> None:
        if place.state is PlaceState.WAITING:
            self._turns.leave(place)
            if self._held is place:
                self._held = None
        elif place.state is PlaceState.RUNNING:
            self._under_way.end(place)
            if finished:
                self._learn(place, now_s)
        place.state = PlaceState.ENDED

    def signals(self, now_s: float) -> Signals:
        room, lanes = self._room, self._turns.lanes
        self._under_way.look(now_s)
        drain_s = self._drain_s()
        risk = {tier: self._risk[tier].value(now_s) for tier in Tier}
        wanted = max(room.capacity.replicas, 1)
        if drain_s is not None and self._patience_s:
            best = min(self._patience_s)
            offered = self._offered.value(now_s) / 1000 / self._offered.window_s
            load = Load(room.capacity.replicas, drain_s, risk[best], self._patience_s[best], offered)
            wanted = self._scaling.wanted(load, now_s)
        return Signals(
            drain_s=drain_s,
            risk=risk,
            waiting={lane.tier: lane.waiting for lane in lanes},
            running=len(self._under_way.places),
            kv_reserved_tokens=room.kv_tokens,
            kv_budget_tokens=room.kv_budget,
            wanted_replicas=wanted,
            noisy=self._neighbours.noisy(now_s),
        )

    def check(self) -> None:
        running = list(self._under_way.places)
        assert all(place.state is PlaceState.RUNNING for place in running)
        self._room.check(running)
        self._under_way.check()
        self._turns.check(running)
        assert self._held is None or self._held.state is PlaceState.WAITING

    def _priced(self, demand: Demand, progress: Progress, now_s: float) -> Place:
        capacity = self._room.capacity
        place = Place(demand, progress, sequences=demand.sequences, offered_s=now_s)
        each = per_sequence(demand)
        expected = self._lengths.expect(demand.tenant, each)
        place.cost_us = self._under_way.prices.whole_us(demand, expected)
        usual, most = (each, each) if capacity.holds_whole_answers else (expected.mean, expected.p90)
        place.kv_tokens = kv_need(demand, usual, capacity)
        place.kv_spread = max(kv_need(demand, most, capacity) - place.kv_tokens, 0)
        if self._room.kv_budget is not None:  # beyond that it has all of it, and is at the engine's mercy
            place.kv_tokens = min(place.kv_tokens, self._room.kv_budget)
        place.context_tokens = demand.prompt_tokens / max(demand.sequences, 1)
        place.look_again_at = expected.mean * demand.sequences
        place.deadline_s = demand.deadline_s
        alone_s = self._forecaster.alone(place, capacity)
        if not demand.is_strict:
            place.deadline_s = max(demand.deadline_s, demand.arrived_s + self._settings.stretch * alone_s)
        return place

    def _too_large(self, place: Place) -> Refused | None:
        capacity, budget, demand = self._room.capacity, self._room.kv_budget, place.demand
        if not capacity.places or capacity.batch is not None:
            return None  # rows beyond the places are computed in more batches than one
        if demand.sequences > capacity.places:
            message = f"{demand.sequences} answers at once do not fit: there are {capacity.places} places"
            return Refused(Reason.TOO_LARGE, message)
        least = least_kv(demand, capacity)
        if budget is not None and least > budget:
            message = f"the request takes {least} tokens of the cache, of which {budget} can be had at most"
            return Refused(Reason.TOO_LARGE, message)
        return None

    def _too_many(self, place: Place) -> Refused | None:
        """However patient they are, the queue has an end; a flood fills no more than its own part of it."""
        most = self._settings.most_waiting
        if self._turns.waiting < most:
            return None
        if self._turns.waiting_of(place.demand) < most // max(self._turns.waiting_tenants, 1):
            return None
        return Refused(Reason.BUSY, "too many requests are waiting", self._drain_s() or _SOON_S)

    def _too_late(self, place: Place, now_s: float) -> Refused | None:
        if not self._under_way.prices.is_known:
            return None
        demand, room = place.demand, self._room
        lane = self._turns.lanes[demand.tier]
        lacking = self._restraint.lacking(place)
        is_free = lacking <= 0 and self._held is None and room.fits(place) and room.is_open(demand.tier)
        queue = self._turns.queue_for(place)
        if queue.own_us or not is_free or self._turns.is_at_limit(place):
            place.wait = Wait.BEHIND_OWN if queue.own_us else Wait.BEHIND_OTHERS
            self._under_way.look(now_s)
        part = room.part_of(place)
        if lacking > 0:
            place.wait = Wait.HELD_BACK
            part = min(max(part, lacking / max(room.capacity.places_here, 1)), 1.0)
        engine = self._engine()
        away_s = self._forecaster.foretell(place, engine, queue, part, now_s)
        assert place.forecast_late_s is not None
        late_s = place.forecast_late_s
        if not lane.waiting and room.is_guaranteed(demand.tier):  # it pays for nobody else's work
            late_s = now_s - demand.arrived_s + self._forecaster.once_begun_s(demand, engine)
        excess_s = demand.arrived_s + late_s - place.deadline_s
        self._risk[demand.tier].add(excess_s > 0, now_s)
        if excess_s <= 0 or not self._forecaster.is_tried:
            return None
        self._forecaster.refused(place)
        late = "too late for its own deadline" if demand.is_strict else "too late: the model is busy"
        message = f"the first token would come {late}"
        return Refused(Reason.BUSY, message, max(excess_s, away_s))

    def _engine(self) -> Engine:
        room, under_way = self._room, self._under_way
        return Engine(
            room.capacity, under_way.prefill_tokens, room.sequences, room.kv_tokens, under_way.remaining_us
        )

    def _expire_at(self, place: Place) -> None:
        """From then on even an idle engine would be too late."""
        self._number += 1
        heappush(self._deadlines, (place.deadline_s - place.alone_s, self._number, place))
        if len(self._deadlines) > 2 * self._turns.waiting + 64:
            self._deadlines = [each for each in self._deadlines if each[2].state is PlaceState.WAITING]
            heapify(self._deadlines)

    def _expired(self, now_s: float) -> list[Place]:
        lost = []
        while self._deadlines and self._deadlines[0][0] < now_s:
            place = heappop(self._deadlines)[2]
            if place.state is PlaceState.WAITING:
                self._refuse(place, now_s)
                lost.append(place)
        return lost

    def _next(self, now_s: float) -> Place | None:
        held = self._held
        if held is None:
            place = self._turns.next(self._room.is_open, self._fits_or_is_held)
            if self._held is not None:
                self._held_since_s = now_s
                self._turns.set_aside(self._held)
                if place is None:  # now the next of its tenant can be seen
                    return self._next(now_s)
            return place
        tier = held.demand.tier
        may_begin = self._room.is_open(tier) and not self._turns.is_at_limit(held)
        if may_begin and self._room.fits(held):
            self._held = None
            return held
        if not may_begin or now_s - self._held_since_s <= self._settings.pass_s:
            return self._turns.next(self._room.is_open, self._may_begin)
        return self._turns.next(
            lambda other: other < tier and self._room.is_guaranteed(other), self._may_begin
        )

    def _fits_or_is_held(self, place: Place) -> bool:
        if self._restraint.holds_back(place):
            return False
        if self._room.fits(place):
            return True
        if self._held is None:
            self._held = place
        return False

    def _may_begin(self, place: Place) -> bool:
        return self._room.fits(place) and not self._restraint.holds_back(place)

    def _is_lost(self, place: Place, now_s: float) -> bool:
        """Looks at its deadline once more before anything is computed for it."""
        if now_s + self._forecaster.once_begun_s(place.demand, self._engine()) <= place.deadline_s:
            return False
        self._refuse(place, now_s)
        return True

    def _begin(self, place: Place, now_s: float) -> None:
        place.state, place.begun_s = PlaceState.RUNNING, now_s
        self._under_way.begin(place)
        self._forecaster.begun(place, now_s)
        self._neighbours.begun(place.cost_us, now_s)

    def _refuse(self, place: Place, now_s: float) -> None:
        message = "its turn did not come in time: the model is busy"
        place.refusal = Refused(Reason.TOO_LATE, message, self._drain_s() or _SOON_S)
        if place.forecast_late_s is not None:  # nor will it be there any sooner than that
            self._forecaster.came_true(place, max(now_s, place.deadline_s))
        self.end(place, now_s, finished=False)

    def _learn(self, place: Place, now_s: float) -> None:
        demand = place.demand
        if demand.max_tokens:
            generated = place.progress.completion_tokens // max(demand.sequences, 1)
            self._lengths.learn(demand.tenant, per_sequence(demand), generated)
        elif place.first_token_s is None:
            place.first_token_s = now_s
            self._forecaster.came_true(place, now_s)

    def _drain_s(self) -> float | None:
        if not self._under_way.prices.is_known:
            return None
        work_us = self._under_way.remaining_us + sum(lane.waiting_us for lane in self._turns.lanes)
        return work_us / 1e6 / max(self._room.capacity.replicas, 1)
