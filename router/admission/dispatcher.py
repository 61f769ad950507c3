"""Admits requests to one release: priced, in fair order, or refused before they do harm.

A request is refused at once when its first token is predicted to come too late, so that the engine computes
nothing that is of no use any more. Else it waits, in fair turns, until the engine has a slot and the cache
that it is expected to need; nothing is preempted for it. When its turn comes its deadline is checked again.
Heavy tenants leave headroom to those that have less.

One whose turn it is but which does not fit yet is set aside. Smaller ones may pass it for a short while; then
what becomes free is kept for it, so it cannot starve. Only better tiers within their guarantee still pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from python_backend.wire.tiers import Tier
from router.admission.allocation import Allocation
from router.admission.demand import EntryState, QueueEntry, Reason, Refused, Wait
from router.admission.forecast import Forecaster, service_s, wait_s
from router.admission.pricing import kv_need, least_kv, per_sequence
from router.admission.queue import TIER_WEIGHTS, FairQueue
from router.admission.running import Headroom, Running
from router.admission.signals import Faded, Load, Neighbours, Risk, Scaling, Signals

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router.admission.capacity import Capacity
    from router.admission.demand import Demand, Progress
    from router.admission.lane import Tenant
    from router.admission.pricing import OutputLengths
    from router.admission.queue import Shares

_SOON_S = 1.0


@dataclass(frozen=True, slots=True)
class DispatchSettings:
    """What may be set for comparison; the defaults are what is served with."""

    tier_weights: Mapping[Tier, float] = field(default_factory=lambda: TIER_WEIGHTS)
    kv_share: float = 0.9  # of the cache is given out; the rest is for answers longer than predicted
    borrow_cap: float = 0.85  # of all that there is may be taken by tiers beyond their guarantee
    most_waiting: int = 10_000  # requests, however patient they are
    pass_s: float = 0.25  # so long smaller requests may pass one that does not fit yet
    stretch: float = 1.25  # a deadline leaves at least so many times what the prompt takes alone


SERVED_WITH = DispatchSettings()


class Dispatcher:
    """The queue of one release: see Policy for what each method promises."""

    def __init__(
        self, shares: Shares, lengths: OutputLengths, settings: DispatchSettings = SERVED_WITH
    ) -> None:
        self._shares = shares
        self._lengths = lengths
        self._settings = settings
        self._allocation = Allocation(settings.tier_weights, settings.borrow_cap, settings.kv_share)
        self._queue = FairQueue(shares, settings.tier_weights)
        self._running = Running(self._allocation, self._queue, lengths)
        self._patience_s: dict[Tier, float] = {}
        self._headroom = Headroom(self._allocation, self._queue, self._running, self._patience_s)
        self._forecaster = Forecaster()
        self._deadlines: list[tuple[float, int, QueueEntry]] = []
        self._number = 0
        self._held: QueueEntry | None = None
        self._held_since_s = 0.0
        self._neighbours = Neighbours()
        self._risk = [Risk() for _ in Tier]
        self._offered = Faded()
        self._scaling = Scaling()

    def resize(self, capacity: Capacity) -> None:
        self._allocation.resize(capacity)
        self._queue.resize(capacity.slots_here)
        self._running.resize(capacity)

    def offer(self, demand: Demand, progress: Progress, now_s: float) -> QueueEntry | Refused:
        entry, weight = self._priced(demand, progress, now_s), self._shares.weight(demand.tenant)
        refusal = self._judged(entry, weight, now_s)
        if refusal is not None:
            return refusal
        self._join(entry, self._queue.lift(demand, weight))
        return entry

    def admit(self, demand: Demand, progress: Progress, now_s: float) -> QueueEntry | Refused:
        entry, weight = self._priced(demand, progress, now_s), self._shares.weight(demand.tenant)
        refusal = self._judged(entry, weight, now_s)
        if refusal is not None:
            return refusal
        tenant = self._queue.lift(demand, weight)
        if not self._queue.waiting and self._may_begin_at_once(entry, now_s):
            self._allocation.take(entry)
            self._queue.run(entry, tenant)
            self._begin(entry, now_s)
        else:
            self._join(entry, tenant)
        return entry

    def hand_on(self, now_s: float) -> list[QueueEntry]:
        handed = self._expired(now_s)
        if not self._queue.waiting:
            return handed
        self._running.look(now_s, is_busy=True)
        self._allocation.look(now_s)
        while not self._allocation.is_full:
            entry = self._next(now_s)
            if entry is None:
                break
            if self._is_lost(entry, now_s):
                self._refuse(entry, now_s)
            else:
                self._allocation.take(entry)
                self._queue.begin(entry)
                self._begin(entry, now_s)
            handed.append(entry)
        return handed

    def first_token(self, entry: QueueEntry, now_s: float) -> None:
        if entry.state is EntryState.RUNNING and entry.first_token_s is None:
            entry.first_token_s = now_s
            self._running.prefilled(entry)
            self._forecaster.learn(entry, now_s)

    def end(self, entry: QueueEntry, now_s: float, finished: bool = True) -> None:
        if entry.state is EntryState.WAITING:
            self._queue.leave(entry)
            if self._held is entry:
                self._held = None
        elif entry.state is EntryState.RUNNING:
            self._running.end(entry)
            if finished:
                self._learn(entry, now_s)
        entry.state = EntryState.ENDED

    def signals(self, now_s: float) -> Signals:
        allocation, lanes = self._allocation, self._queue.lanes
        self._running.look(now_s, is_busy=self._queue.waiting > 0)
        drain_s = self._drain_s()
        risk = {tier: self._risk[tier].value(now_s) for tier in Tier}
        wanted = max(allocation.capacity.replicas, 1)
        if drain_s is not None and self._patience_s:
            best = min(self._patience_s)
            offered = self._offered.value(now_s) / 1000 / self._offered.window_s
            load = Load(allocation.capacity.replicas, drain_s, risk[best], self._patience_s[best], offered)
            wanted = self._scaling.wanted(load, now_s)
        return Signals(
            drain_s=drain_s,
            risk=risk,
            waiting={lane.tier: lane.waiting for lane in lanes},
            running=len(self._running.entries),
            kv_reserved_tokens=allocation.kv_tokens,
            kv_budget_tokens=allocation.kv_budget,
            wanted_replicas=wanted,
            noisy=self._neighbours.noisy(now_s),
        )

    def check(self) -> None:
        running = list(self._running.entries)
        assert all(entry.state is EntryState.RUNNING for entry in running)
        self._allocation.check(running)
        self._running.check()
        self._queue.check(running)
        assert self._held is None or self._held.state is EntryState.WAITING

    # Judging what is offered

    def _priced(self, demand: Demand, progress: Progress, now_s: float) -> QueueEntry:
        capacity, budget = self._allocation.capacity, self._allocation.kv_budget
        entry = QueueEntry(demand, progress, sequences=demand.sequences, offered_s=now_s)
        sequences = demand.sequences or 1
        each = -(-demand.max_tokens // sequences)
        expected = self._lengths.expect(demand.tenant, each)
        entry.cost_us = self._running.prices.whole_us(demand, expected)
        usual, most = (each, each) if capacity.holds_whole_answers else (expected.mean, expected.p90)
        entry.kv_tokens = kv_tokens = kv_need(demand, usual, capacity)
        if most > usual:
            entry.kv_spread = max(kv_need(demand, most, capacity) - kv_tokens, 0)
        if budget is not None and kv_tokens > budget:  # beyond that it has all of it, and may be preempted
            entry.kv_tokens = budget
        entry.context_tokens = demand.prompt_tokens / sequences
        entry.look_again_at = expected.mean * demand.sequences
        entry.deadline_s = demand.deadline_s
        forecaster, alone_s = self._forecaster, service_s(demand, capacity)
        entry.alone_s = forecaster.usual(demand.tier) * alone_s
        if not demand.is_strict:
            late_s = forecaster.late(demand.tier) * alone_s
            entry.deadline_s = max(demand.deadline_s, demand.arrived_s + self._settings.stretch * late_s)
        return entry

    def _judged(self, entry: QueueEntry, weight: float, now_s: float) -> Refused | None:
        """Why it is refused at once, if it is."""
        demand = entry.demand
        self._allocation.asked_s[demand.tier] = now_s
        self._patience_s[demand.tier] = demand.deadline_s - demand.arrived_s
        self._offered.add(entry.cost_us, now_s)
        self._neighbours.offered(demand.tenant, weight, entry.cost_us, now_s)
        refusal = self._too_large(entry) or self._too_many(demand) or self._too_late(entry, now_s)
        if refusal is not None:
            entry.state = EntryState.ENDED
        elif entry.wait:
            self._neighbours.waits(demand.tenant, now_s)
            if entry.wait is Wait.HELD_BACK:
                self._neighbours.spared(now_s)
        return refusal

    def _too_large(self, entry: QueueEntry) -> Refused | None:
        capacity, budget, demand = self._allocation.capacity, self._allocation.kv_budget, entry.demand
        if not capacity.slots or capacity.batch is not None:
            return None  # rows beyond the slots are computed in several batches
        if demand.sequences > capacity.slots:
            message = f"{demand.sequences} answers at once do not fit: there are {capacity.slots} slots"
            return Refused(Reason.TOO_LARGE, message)
        if budget is not None and entry.kv_tokens >= budget:
            least = least_kv(demand, capacity)
            if least > budget:
                message = f"the request needs {least} tokens of the cache, of which {budget} are available"
                return Refused(Reason.TOO_LARGE, message)
        return None

    def _too_many(self, demand: Demand) -> Refused | None:
        """However patient requests are, the queue has an end; a flood fills only its own part of it."""
        most = self._settings.most_waiting
        if self._queue.waiting < most:
            return None
        if self._queue.waiting_of(demand) < most // max(self._queue.waiting_tenants, 1):
            return None
        return Refused(Reason.BUSY, "too many requests are waiting", self._drain_s() or _SOON_S)

    def _too_late(self, entry: QueueEntry, now_s: float) -> Refused | None:
        if not self._running.prices.is_known:
            return None
        demand, allocation = entry.demand, self._allocation
        lacking = self._headroom.lacking(entry)
        own_us = self._queue.own_us(demand) if self._queue.waiting else 0
        is_free = not own_us and lacking <= 0 and self._held is None
        is_free = is_free and allocation.fits(entry) and allocation.is_open(demand.tier)
        away_s = 0.0
        if not is_free or self._queue.is_at_limit(entry):
            entry.wait = Wait.BEHIND_OWN if own_us else Wait.BEHIND_OTHERS
            away_s = self._wait_s(entry, lacking, now_s)
        service = self._service_s(demand)
        self._forecaster.predict(entry, away_s + service, now_s)
        assert entry.forecast_late_s is not None
        late_s = entry.forecast_late_s
        if not self._queue.lanes[demand.tier].waiting and allocation.is_guaranteed(demand.tier):
            # It pays for nobody else's work.
            late_s = now_s - demand.arrived_s + self._forecaster.usual(demand.tier) * service
        excess_s = demand.arrived_s + late_s - entry.deadline_s
        self._risk[demand.tier].add(excess_s > 0, now_s)
        if excess_s <= 0 or not self._forecaster.is_tried:
            return None
        self._forecaster.relax(entry)
        late = "too late for its own deadline" if demand.is_strict else "too late: the model is busy"
        message = f"the first token would come {late}"
        return Refused(Reason.BUSY, message, max(excess_s, away_s))

    def _wait_s(self, entry: QueueEntry, lacking: float, now_s: float) -> float:
        """How long its turn is away."""
        allocation, tier = self._allocation, entry.demand.tier
        ahead = self._queue.ahead_of(entry)
        self._running.look(now_s, is_busy=self._queue.waiting > 0)
        part = allocation.part_of(entry)
        if lacking > 0:
            entry.wait = Wait.HELD_BACK
            part = min(max(part, lacking / max(allocation.slots, 1)), 1.0)
        replicas = allocation.capacity.replicas
        share = self._forecaster.flows.share(tier, ahead.guarantee, ahead.most_share, replicas, now_s)
        return wait_s(ahead, part, self._running.remaining_us, share, replicas)

    def _service_s(self, demand: Demand) -> float:
        allocation = self._allocation
        tokens, kv_tokens = self._running.prefill_tokens, allocation.kv_tokens
        return service_s(demand, allocation.capacity, tokens, allocation.sequences, kv_tokens)

    def _join(self, entry: QueueEntry, tenant: Tenant) -> None:
        """It waits for its turn, until even an idle engine would be too late."""
        self._queue.join(entry, tenant)
        self._number += 1
        heappush(self._deadlines, (entry.deadline_s - entry.alone_s, self._number, entry))
        if len(self._deadlines) > 2 * self._queue.waiting + 64:
            self._deadlines = [each for each in self._deadlines if each[2].state is EntryState.WAITING]
            heapify(self._deadlines)

    # Handing on

    def _may_begin_at_once(self, entry: QueueEntry, now_s: float) -> bool:
        """What `hand_on` would decide about the only one that waits."""
        allocation, queue = self._allocation, self._queue
        if entry.deadline_s - entry.alone_s < now_s:
            return False
        self._running.look(now_s, is_busy=True)
        allocation.look(now_s)
        return (
            not allocation.is_full
            and allocation.is_open(entry.demand.tier)
            and not queue.is_at_limit(entry)
            and self._may_begin(entry)
            and not self._is_lost(entry, now_s)
        )

    def _expired(self, now_s: float) -> list[QueueEntry]:
        lost = []
        while self._deadlines and self._deadlines[0][0] < now_s:
            entry = heappop(self._deadlines)[2]
            if entry.state is EntryState.WAITING:
                self._refuse(entry, now_s)
                lost.append(entry)
        return lost

    def _next(self, now_s: float) -> QueueEntry | None:
        held = self._held
        if held is None:
            entry = self._queue.next(self._allocation.is_open, self._fits_or_is_held)
            if self._held is not None:
                self._held_since_s = now_s
                self._queue.set_aside(self._held)
                if entry is None:  # now the next of its tenant can be seen
                    return self._next(now_s)
            return entry
        tier = held.demand.tier
        may_begin = self._allocation.is_open(tier) and not self._queue.is_at_limit(held)
        if may_begin and self._allocation.fits(held):
            self._held = None
            return held
        if not may_begin or now_s - self._held_since_s <= self._settings.pass_s:
            return self._queue.next(self._allocation.is_open, self._may_begin)
        return self._queue.next(
            lambda other: other < tier and self._allocation.is_guaranteed(other), self._may_begin
        )

    def _fits_or_is_held(self, entry: QueueEntry) -> bool:
        if self._headroom.lacking(entry) > 0:
            return False
        if self._allocation.fits(entry):
            return True
        if self._held is None:
            self._held = entry
        return False

    def _may_begin(self, entry: QueueEntry) -> bool:
        return self._allocation.fits(entry) and self._headroom.lacking(entry) <= 0

    def _is_lost(self, entry: QueueEntry, now_s: float) -> bool:
        """Its deadline is checked once more before anything is computed for it."""
        demand = entry.demand
        return now_s + self._forecaster.usual(demand.tier) * self._service_s(demand) > entry.deadline_s

    def _begin(self, entry: QueueEntry, now_s: float) -> None:
        entry.state, entry.begun_s = EntryState.RUNNING, now_s
        self._running.begin(entry)
        self._forecaster.flows.add(entry.demand.tier, entry.cost_us, now_s)
        self._neighbours.begun(entry.cost_us, now_s)

    def _refuse(self, entry: QueueEntry, now_s: float) -> None:
        message = "its turn did not come in time: the model is busy"
        entry.refusal = Refused(Reason.TOO_LATE, message, self._drain_s() or _SOON_S)
        if entry.forecast_late_s is not None:  # nor will it be there any sooner than that
            self._forecaster.learn(entry, max(now_s, entry.deadline_s))
        self.end(entry, now_s, finished=False)

    def _learn(self, entry: QueueEntry, now_s: float) -> None:
        demand = entry.demand
        if demand.max_tokens:
            generated = entry.progress.completion_tokens // (demand.sequences or 1)
            self._lengths.learn(demand.tenant, per_sequence(demand), generated)
        elif entry.first_token_s is None:
            entry.first_token_s = now_s
            self._forecaster.learn(entry, now_s)

    def _drain_s(self) -> float | None:
        """Until all that runs and waits would be done."""
        if not self._running.prices.is_known:
            return None
        work_us = self._running.remaining_us + sum(lane.waiting_us for lane in self._queue.lanes)
        return work_us / 1e6 / max(self._allocation.capacity.replicas, 1)
