"""Admits requests to one release: priced, in fair order, or refused before they do harm.

A request is refused at once when its first token is predicted to come too late, so that the engine computes
nothing that is of no use any more. Else it waits, in fair turns, until the engine has a slot and the cache
that it is expected to need. When its turn comes its deadline is checked again. One of a tenant with less than
its part is neither refused nor kept waiting for what others have: the engine pauses theirs for it. And heavy
tenants leave headroom to those that have less, so that this is seldom needed.

One whose turn it is but which does not fit yet is set aside. Smaller ones may pass it for a short while; then
what becomes free is kept for it, so it cannot starve. Only better tiers within their guarantee still pass.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import heapify, heappop, heappush
from math import inf
from typing import TYPE_CHECKING

from python_backend.wire.tiers import Tier
from router.admission.allocation import LOOK_S, Allocation
from router.admission.demand import EntryState, Reason, Refused
from router.admission.forecast import Forecaster
from router.admission.judge import SOON_S, DispatchSettings, Judge
from router.admission.queue import FairQueue
from router.admission.running import Running
from router.admission.signals import Load, Signals

if TYPE_CHECKING:
    from router.admission.allocation import Tenant
    from router.admission.capacity import Capacity
    from router.admission.demand import Demand, Progress, QueueEntry
    from router.admission.forecast import OutputLengths
    from router.admission.queue import Shares

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
        self._forecaster = Forecaster()
        self._judge = Judge(lengths, self._running, self._forecaster, settings)
        self._deadlines: list[tuple[float, int, QueueEntry]] = []
        self._number = 0
        self._held: QueueEntry | None = None
        self._held_since_s = 0.0
        self._whole = self._allocation.capacity  # of which a batch model uses what keeps its objective
        self._asked_s = 0.0  # when a batch model was last asked

    def resize(self, capacity: Capacity) -> None:
        self._whole = capacity
        self._resize(self._in_time(self._asked_s))

    def _resize(self, capacity: Capacity) -> None:
        self._allocation.resize(capacity)
        self._queue.resize(capacity.slots_here)
        self._running.resize(capacity)

    def offer(self, demand: Demand, progress: Progress, now_s: float) -> QueueEntry | Refused:
        if demand.rows:
            self._keep_in_time(demand, now_s)
        weight = self._shares.weight(demand.tenant)
        entry = self._judge.priced(demand, progress, weight, now_s)
        refusal = self._judge.refusal(entry, self._held is not None, now_s)
        if refusal is not None:
            return refusal
        self._join(entry, self._queue.lift(demand, weight))
        return entry

    def admit(self, demand: Demand, progress: Progress, now_s: float) -> QueueEntry | Refused:
        if demand.rows:
            self._keep_in_time(demand, now_s)
        weight = self._shares.weight(demand.tenant)
        entry = self._judge.priced(demand, progress, weight, now_s)
        refusal = self._judge.refusal(entry, self._held is not None, now_s)
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
        while True:
            entry = None if self._allocation.is_full else self._next(now_s)
            is_below = entry is None and self._allocation.capacity.can_pause
            if is_below:
                entry = self._queue.next(_all_tiers, lambda each: self._allocation.displaces_now(each, now_s))
            if entry is None:
                break
            if not is_below and not entry.is_light and self._is_lost(entry, now_s):
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
            self._running.prefill_tokens -= entry.prefill_tokens
            entry.prefill_tokens = 0
            self._forecaster.learn(entry, now_s)

    def give_way(self, entry: QueueEntry, rows_left: int, now_s: float) -> None:
        self._running.end(entry)
        demand = entry.demand
        demand.prompt_tokens = demand.prompt_tokens * rows_left // max(demand.rows, 1)
        demand.rows, demand.deadline_s = rows_left, inf
        weight = self._shares.weight(demand.tenant)
        rest = self._judge.priced(demand, entry.progress, weight, now_s)
        entry.sequences, entry.cost_us = min(rest.sequences, rows_left), rest.cost_us
        entry.deadline_s, entry.state = inf, EntryState.WAITING
        self._join(entry, self._queue.lift(demand, weight))

    def end(self, entry: QueueEntry, now_s: float, finished: bool = True) -> None:
        if entry.state is EntryState.WAITING:
            self._queue.leave(entry)
            if self._held is entry:
                self._held = None
        elif entry.state is EntryState.RUNNING:
            if finished and entry.demand.rows:
                self._learn_limit(entry, now_s)
            self._running.end(entry)
            if finished:
                self._learn(entry, now_s)
        entry.state = EntryState.ENDED

    def signals(self, now_s: float) -> Signals:
        allocation, judge, patience_s = self._allocation, self._judge, self._running.patience_s
        self._running.look(now_s, is_busy=self._queue.waiting > 0)
        drain_s = self._running.drain_s()
        risk = {tier: judge.risk[tier].value(now_s) for tier in Tier}
        load = None
        if drain_s is not None and patience_s:
            best, capacity = min(patience_s), allocation.capacity
            offered = judge.offered.value(now_s) / 1000 / judge.offered.window_s
            offered *= capacity.slots / max(capacity.slots_here, 1)
            load = Load(capacity.replicas, drain_s, risk[best], patience_s[best], offered)
        return Signals(
            drain_s=drain_s,
            risk=risk,
            waiting={lane.tier: lane.waiting for lane in self._queue.lanes},
            running=len(self._running.entries),
            kv_reserved_tokens=allocation.kv_tokens,
            kv_budget_tokens=allocation.kv_budget,
            load=load,
            noisy=judge.neighbours.noisy(now_s),
        )

    def check(self) -> None:
        running = list(self._running.entries)
        assert all(entry.state is EntryState.RUNNING for entry in running)
        self._allocation.check(running)
        self._running.check()
        self._queue.check(running)
        assert self._held is None or self._held.state is EntryState.WAITING

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
        demand, allocation = entry.demand, self._allocation
        if entry.deadline_s - entry.alone_s < now_s:
            return False
        is_judged = self._running.prices.is_known and not entry.wait  # it fits, of what was known then
        if self._running.look(now_s, is_busy=True) and self._running.entries:
            is_judged = False
        if now_s - allocation.looked_s >= LOOK_S:
            allocation.look(now_s)
            is_judged = is_judged and allocation.is_open(demand.tier)
        if not allocation.sequences:  # alone everything fits
            return allocation.slots > 0 and now_s + entry.alone_s <= entry.deadline_s
        if is_judged and self._is_bounded(entry):
            return allocation.sequences < allocation.slots and not self._is_lost(entry, now_s)
        if is_judged:
            begun_s = self._forecaster.usual(demand.tier) * entry.service_s
            return allocation.sequences < allocation.slots and now_s + begun_s <= entry.deadline_s
        return (
            not allocation.is_full
            and allocation.is_open(demand.tier)
            and not self._queue.is_at_limit(entry)
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
            entry = self._queue.next(
                self._allocation.is_open, lambda each: self._fits_or_is_held(each, now_s)
            )
            if self._held is not None:
                self._held_since_s = now_s
                self._queue.set_aside(self._held)
                if entry is None:  # now the next of its tenant can be seen
                    return self._next(now_s)
            return entry
        tier = held.demand.tier
        may_begin = self._allocation.is_open(tier) and not self._queue.is_at_limit(held)
        if may_begin and self._has_room(held, now_s):
            self._held = None
            return held
        if not may_begin or now_s - self._held_since_s <= self._settings.pass_s:
            return self._queue.next(self._allocation.is_open, self._may_begin)
        return self._queue.next(
            lambda other: other < tier and self._allocation.is_guaranteed(other), self._may_begin
        )

    def _fits_or_is_held(self, entry: QueueEntry, now_s: float) -> bool:
        if self._running.lacking(entry) > 0:
            return False
        if self._has_room(entry, now_s):
            return True
        if self._held is None:
            self._held = entry
        return False

    def _may_begin(self, entry: QueueEntry) -> bool:
        return self._allocation.fits(entry) and self._running.lacking(entry) <= 0

    def _has_room(self, entry: QueueEntry, now_s: float) -> bool:
        return self._allocation.fits(entry) or self._allocation.displaces_now(entry, now_s)

    def _is_lost(self, entry: QueueEntry, now_s: float) -> bool:
        """Its deadline is checked once more before anything is computed for it."""
        demand, allocation = entry.demand, self._allocation
        if self._is_bounded(entry) and allocation.sequences:
            rows = allocation.sequences + entry.sequences
            tokens = self._running.prefill_tokens + demand.prompt_tokens
            return now_s + self._judge.limit.late_s(allocation.capacity, rows, tokens) > entry.deadline_s
        # What is learned from a few requests alike says nothing of a crowd: nobody is sent away for it.
        usual = self._forecaster.usual(demand.tier) if self._forecaster.is_tried else 0.0
        return now_s + usual * self._running.service_s(demand) > entry.deadline_s

    def _is_bounded(self, entry: QueueEntry) -> bool:
        """Whether a bound on what is in flight bounds its time: not that of a list, which has many turns."""
        return self._allocation.capacity.batch is not None and 0 < entry.demand.rows <= entry.sequences

    def _begin(self, entry: QueueEntry, now_s: float) -> None:
        entry.state, entry.begun_s = EntryState.RUNNING, now_s
        self._running.begin(entry)
        entry.beside_rows = self._allocation.sequences
        self._forecaster.flows.add(entry.demand.tier, entry.cost_us, now_s)
        self._judge.neighbours.begun(entry.cost_us, now_s)

    def _refuse(self, entry: QueueEntry, now_s: float) -> None:
        message = "the request timed out in the queue: the model is busy"
        entry.refusal = Refused(Reason.TOO_LATE, message, self._running.drain_s() or SOON_S)
        if entry.forecast_late_s is not None:  # nor will it be there any sooner than that
            self._forecaster.learn(entry, max(now_s, entry.deadline_s))
        self.end(entry, now_s, finished=False)

    def _keep_in_time(self, demand: Demand, now_s: float) -> None:
        """No more of a batch model's slots are used than are answered in time."""
        self._asked_s = now_s
        if not demand.is_strict:
            patience_s = demand.deadline_s - demand.arrived_s
            self._judge.limit.asked(demand.tier, patience_s, demand.rows, demand.prompt_tokens, now_s)
        capacity = self._in_time(now_s)
        if capacity.slots != self._allocation.capacity.slots:
            self._resize(capacity)

    def _in_time(self, now_s: float) -> Capacity:
        whole = self._whole
        slots = self._judge.limit.rows(whole, now_s)
        if slots == whole.slots:
            return whole
        own = None if whole.own_slots is None else max(whole.own_slots * slots // whole.slots, 1)
        return replace(whole, slots=slots, own_slots=own)

    def _learn_limit(self, entry: QueueEntry, now_s: float) -> None:
        if not self._is_bounded(entry) or entry.begun_s is None:
            return
        rows, tokens = max(entry.beside_rows, self._allocation.sequences), self._running.prefill_tokens
        self._judge.limit.learn(self._allocation.capacity, now_s - entry.begun_s, rows, tokens)

    def _learn(self, entry: QueueEntry, now_s: float) -> None:
        demand = entry.demand
        if demand.max_tokens:
            generated = entry.progress.completion_tokens // (demand.sequences or 1)
            self._lengths.learn(demand.tenant, -(-demand.max_tokens // (demand.sequences or 1)), generated)
        elif entry.first_token_s is None:
            entry.first_token_s = now_s
            self._forecaster.learn(entry, now_s)


def _all_tiers(tier: Tier) -> bool:
    return True
