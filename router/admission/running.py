"""What the engine has in flight: what of it is still to come, read off as it runs, and the headroom left."""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING

from router.admission.capacity import Capacity
from router.admission.pricing import kv_need, per_sequence, prices_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from python_backend.wire.tiers import Tier
    from router.admission.allocation import Allocation
    from router.admission.demand import QueueEntry
    from router.admission.pricing import OutputLengths
    from router.admission.queue import FairQueue

# How often running entries are looked at: tokens are not reported one by one. More of them less often.
_LOOK_S, _LOOK_AT = 0.05, 64
_BATCH_S = 5.0
# Prices change when the usual batch has: not with every request that comes and goes.
_NOTABLE = 0.1
# Before a batch was measured: the cache would hold so many sequences of this length.
_USUAL_TOKENS, _LARGEST_BATCH = 512, 256.0
# Of the slots that become free while a request waits, so many stand for slots that were left free.
_COUNTED = 0.25


class Running:
    """The running entries. Their tenants are charged for tokens when these have come, and for no others."""

    def __init__(self, allocation: Allocation, queue: FairQueue, lengths: OutputLengths) -> None:
        self._allocation = allocation
        self._queue = queue
        self._lengths = lengths
        self.entries: dict[QueueEntry, None] = {}
        self.remaining_us = 0
        self.prefill_tokens = 0
        self._looked_s = 0.0
        self._batch = self._priced_batch = 1.0
        self._is_measured = False
        self.prices = prices_of(Capacity(replicas=0, slots=0), 1.0)

    def resize(self, capacity: Capacity) -> None:
        if not self._is_measured:
            self._batch = _first_batch(capacity)
        self._priced_batch = self._batch
        self.prices = prices_of(capacity, self._batch)

    def begin(self, entry: QueueEntry) -> None:
        """Once its slots are taken and it has left the queue."""
        demand = entry.demand
        self.entries[entry] = None
        entry.charged_tokens = entry.progress.completion_tokens
        entry.remaining_us = entry.cost_us
        self.remaining_us += entry.cost_us
        self._queue.lanes[demand.tier].running_us += entry.cost_us
        entry.prefill_tokens = demand.prompt_tokens
        self.prefill_tokens += entry.prefill_tokens
        self._charge(entry, self.prices.prompt_us(demand))

    def prefilled(self, entry: QueueEntry) -> None:
        self.prefill_tokens -= entry.prefill_tokens
        entry.prefill_tokens = 0

    def end(self, entry: QueueEntry) -> None:
        if entry.progress.completion_tokens > entry.charged_tokens:
            self._read(entry)
        self.prefill_tokens -= entry.prefill_tokens
        entry.prefill_tokens = 0
        self.remaining_us -= entry.remaining_us
        self._queue.lanes[entry.demand.tier].running_us -= entry.remaining_us
        del self.entries[entry]
        self._allocation.give_back(entry)
        self._queue.end(entry)

    def is_look_due(self, now_s: float) -> bool:
        return now_s - self._looked_s >= _LOOK_S * max(1.0, len(self.entries) / _LOOK_AT)

    def look(self, now_s: float, is_busy: bool) -> None:
        """Reads how far everybody is, if that is some time ago; `is_busy`: the batch can be measured."""
        if not self.is_look_due(now_s):
            return
        passed_s = now_s - self._looked_s
        self._looked_s = now_s
        for entry in self.entries:
            if entry.progress.completion_tokens > entry.charged_tokens:
                self._read(entry)
        capacity = self._allocation.capacity
        if is_busy and capacity.batch is None and capacity.replicas:
            batch = self._allocation.sequences / capacity.replicas
            self._batch += (batch - self._batch) * (1 - exp(-passed_s / _BATCH_S))
            self._is_measured = True
            if abs(self._batch - self._priced_batch) > _NOTABLE * self._priced_batch:
                self.resize(capacity)

    def _read(self, entry: QueueEntry) -> None:
        """Charges the tokens that have come since."""
        tokens = entry.progress.completion_tokens
        new = tokens - entry.charged_tokens
        entry.charged_tokens = tokens
        self._charge(entry, self.prices.tokens_us(new, entry.context_tokens + tokens / 2))
        if tokens >= entry.look_again_at:
            self._expect_more(entry, tokens)

    def _charge(self, entry: QueueEntry, service_us: int) -> None:
        lane = self._queue.charge(entry, service_us)
        done_us = service_us if service_us < entry.remaining_us else entry.remaining_us
        entry.remaining_us -= done_us
        self.remaining_us -= done_us
        lane.running_us -= done_us

    def _expect_more(self, entry: QueueEntry, tokens: int) -> None:
        """It is longer than most: how much longer is judged by those that were, and cache reserved for it."""
        demand = entry.demand
        sequences = max(demand.sequences, 1)
        each = tokens // sequences
        left = self._lengths.remaining(demand.tenant, per_sequence(demand), each)
        more = left.mean * demand.sequences
        remaining_us = self.prices.tokens_us(more, demand.prompt_tokens / sequences + each / 2)
        self.remaining_us += remaining_us - entry.remaining_us
        self._queue.lanes[demand.tier].running_us += remaining_us - entry.remaining_us
        entry.remaining_us = remaining_us
        entry.look_again_at = tokens + max(more // 2, 16)
        capacity = self._allocation.capacity
        if kv_need(demand, each, capacity) + capacity.block_tokens > entry.kv_tokens:
            wanted = kv_need(demand, each + left.p50, capacity)
            if wanted > entry.kv_tokens:
                self._allocation.grow(entry, wanted - entry.kv_tokens)

    def check(self) -> None:
        assert self.remaining_us == sum(entry.remaining_us for entry in self.entries)
        assert self.remaining_us == sum(lane.running_us for lane in self._queue.lanes)
        assert self.prefill_tokens == sum(entry.prefill_tokens for entry in self.entries)
        assert all(entry.remaining_us >= 0 for entry in self.entries)


class Headroom:
    """Heavy tenants leave headroom to those who have less; judged by what runs at the moment.

    Where there is hardly time to wait, turns decide little: what becomes free goes to whoever asks next, and
    that is mostly the one that asks most. Nothing that runs is preempted, so headroom must be left before it
    is needed; the less of it the longer a request of the tier can wait, since slots become free meanwhile.
    """

    def __init__(
        self, allocation: Allocation, queue: FairQueue, running: Running, patience_s: Mapping[Tier, float]
    ) -> None:
        self._allocation = allocation
        self._queue = queue
        self._running = running
        self._patience_s = patience_s  # of the tiers, as last seen

    def lacking(self, entry: QueueEntry) -> float:
        """How many slots have to become free before it may begin; none where that is not above 0."""
        to_leave = self._queue.to_leave(entry)
        if not to_leave:
            return 0.0
        allocation = self._allocation
        # They end evenly over twice the time that what is in flight takes on average.
        waited_us = 1e6 * allocation.capacity.replicas * self._patience_s[entry.demand.tier]
        freed = allocation.slots * waited_us / (2 * self._running.remaining_us + 1)
        to_leave *= to_leave / (to_leave + _COUNTED * freed)
        return to_leave + allocation.size_of(entry) - allocation.left_slots(entry.demand.tier)


def _first_batch(capacity: Capacity) -> float:
    replicas = max(capacity.replicas, 1)
    if capacity.batch is not None:
        return min(max(capacity.slots / (2 * replicas), 1.0), _LARGEST_BATCH)
    held = capacity.slots if capacity.kv_tokens is None else capacity.kv_tokens / _USUAL_TOKENS
    return min(max(min(capacity.slots, held) / replicas, 1.0), _LARGEST_BATCH)
