"""What the engine has in flight, priced: what of it is still to come, and the headroom left.

Prices are whole microseconds of engine time (a thousandth of a compute unit), so that sums of them are exact
when everything has been released.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import TYPE_CHECKING

from router.admission.capacity import Capacity
from router.admission.forecast import service_s

if TYPE_CHECKING:
    from python_backend.wire.tiers import Tier
    from router.admission.allocation import Allocation
    from router.admission.demand import Demand, QueueEntry
    from router.admission.forecast import Expected, OutputLengths
    from router.admission.queue import FairQueue

# How often running entries are looked at: tokens are not reported one by one. More of them less often.
_LOOK_S, _LOOK_AT = 0.05, 64
_BATCH_S = 5.0
# When those that run will end is not reckoned anew for each of many that are refused.
_ENDS_LAST_S = 0.1
# Prices change when the usual batch has: not with every request that comes and goes.
_NOTABLE = 0.1
# Before a batch was measured: the cache would hold so many sequences of this length.
_USUAL_TOKENS, _LARGEST_BATCH = 512, 256.0
# Of the slots that become free while a request waits, so many stand for slots that were left free.
_COUNTED = 0.25
# Where others can be paused, no more of the slots is left.
_LEFT_PART = 0.125


# Where the cost is not known: a generated token is twice the work of one of the prompt.
_NOMINAL_PROMPT_US, _NOMINAL_TOKEN_US = 100.0, 200.0


@dataclass(frozen=True, slots=True)
class Prices:
    """Microseconds of one replica for each token of a prompt, generated token, and thousand tokens read.

    For batch models `row_us` is the price of a row, beside that of its tokens. Prices that are not known
    serve to compare requests, not to predict anything.
    """

    prompt_token_us: float
    token_us: float
    kilotoken_read_us: float = 0.0
    row_us: float = 0.0
    is_known: bool = False

    def tokens_us(self, tokens: int, context_tokens: float) -> int:
        """Of so many generated tokens, each of which reads about so many tokens of context."""
        return int(tokens * (self.token_us + self.kilotoken_read_us * context_tokens / 1000))

    def of(self, demand: Demand, expected: Expected) -> tuple[int, int]:
        """What is certain when it begins, and what such requests take on average, which is never nothing."""
        sequences, prompt, mean = demand.sequences, demand.prompt_tokens, expected.mean
        rows = demand.rows if demand.rows > sequences else sequences
        tokens = mean * sequences if mean * sequences < demand.max_tokens else demand.max_tokens
        context_tokens = prompt / (sequences or 1) + mean / 2
        token_us = self.token_us + self.kilotoken_read_us * context_tokens / 1000
        prompt_us = int(self.prompt_token_us * prompt + self.row_us * rows)
        return prompt_us, prompt_us + int(tokens * token_us) or 1


def prices_of(capacity: Capacity, batch: float) -> Prices:
    """`batch`: sequences, or rows, that a step of one replica usually has when there is much to do."""
    if capacity.batch is not None:
        row_us = 1000 * (capacity.batch.base_ms / max(batch, 1.0) + capacity.batch.row_ms)
        return Prices(1000 * capacity.batch.token_ms, 0.0, row_us=row_us, is_known=True)
    if capacity.step is not None:
        step = capacity.step
        token_us = 1000 * (step.base_ms / max(batch, 1.0) + step.decode_sequence_ms)
        return Prices(1000 * step.prefill_token_ms, token_us, 1000 * step.kv_kilotoken_ms, is_known=True)
    return Prices(_NOMINAL_PROMPT_US, _NOMINAL_TOKEN_US, row_us=_NOMINAL_PROMPT_US)


def per_sequence(demand: Demand) -> int:
    """The most that one of its sequences may generate."""
    return -(-demand.max_tokens // max(demand.sequences, 1))


def kv_need(demand: Demand, tokens_each: int, capacity: Capacity) -> int:
    """Of the cache, in whole blocks, where each sequence comes to so many tokens.

    The sequences of one request share its prompt; each ends in a block of its own.
    """
    block = capacity.block_tokens or 1
    answers = tokens_each * demand.sequences
    tokens = demand.prompt_tokens + (answers if answers < demand.max_tokens else demand.max_tokens)
    whole = -(-tokens // block) * block + (demand.sequences - 1) * block
    if (window := capacity.window) is None:
        return whole
    in_window = window.blocks * min(demand.prompt_tokens + tokens_each, window.tokens)
    return whole * window.keeps_all + demand.sequences * -(-in_window // block) * block


def least_kv(demand: Demand, capacity: Capacity) -> int:
    """Without which it cannot run at all."""
    return kv_need(demand, per_sequence(demand) if capacity.holds_whole_answers else 1, capacity)


class Running:
    """The running entries. Their tenants are charged for tokens when these have come, and for no others."""

    def __init__(self, allocation: Allocation, queue: FairQueue, lengths: OutputLengths) -> None:
        self.allocation = allocation
        self.queue = queue
        self._lengths = lengths
        self.entries: dict[QueueEntry, None] = {}
        self.patience_s: dict[Tier, float] = {}  # of the tiers' requests, as last seen
        self.remaining_us = 0
        self.prefill_tokens = 0
        self._looked_s = 0.0
        self._batch = self._priced_batch = 1.0
        self._is_measured = False
        self._ends_us: list[int] = []
        self._ends_at_s = 0.0
        self.prices = prices_of(Capacity(replicas=0, slots=0), 1.0)

    def resize(self, capacity: Capacity) -> None:
        if not self._is_measured:
            self._batch = _first_batch(capacity)
        self._priced_batch = self._batch
        before, self.prices = self.prices, prices_of(capacity, self._batch)
        if self.prices.token_us and self.prices.is_known and not before.is_known:
            self._price_again(self.prices.token_us / before.token_us)

    def _price_again(self, times: float) -> None:
        """What is still to come of those that began when nobody knew what a token takes."""
        for entry in self.entries:
            more_us = int(times * entry.remaining_us) - entry.remaining_us
            entry.remaining_us += more_us
            self.remaining_us += more_us
            self.queue.lanes[entry.demand.tier].running_us += more_us

    def begin(self, entry: QueueEntry) -> None:
        """Once its slots are taken and it has left the queue."""
        demand = entry.demand
        self.entries[entry] = None
        entry.charged_tokens = entry.progress.completion_tokens
        entry.remaining_us = entry.cost_us
        self.remaining_us += entry.cost_us
        self.queue.lanes[demand.tier].running_us += entry.cost_us
        # Of all its rows, those that are in flight at once.
        part = entry.sequences / demand.rows if demand.rows > entry.sequences else 1.0
        entry.prefill_tokens = int(part * demand.prompt_tokens)
        self.prefill_tokens += entry.prefill_tokens
        self.remaining_us -= self.queue.charge(entry, int(part * entry.prompt_us))

    def end(self, entry: QueueEntry) -> None:
        if entry.progress.completion_tokens > entry.charged_tokens:
            self._charge(entry)
        self.prefill_tokens -= entry.prefill_tokens
        entry.prefill_tokens = 0
        self.remaining_us -= entry.remaining_us
        self.queue.lanes[entry.demand.tier].running_us -= entry.remaining_us
        del self.entries[entry]
        self.allocation.give_back(entry)
        self.queue.end(entry)

    def look(self, now_s: float, is_busy: bool) -> bool:
        """Reads how far everybody is, if that is some time ago; whether it did.

        `is_busy`: the batch can be measured.
        """
        passed_s = now_s - self._looked_s
        count = len(self.entries)
        if passed_s < (_LOOK_S if count <= _LOOK_AT else _LOOK_S * (count / _LOOK_AT)):
            return False
        self._looked_s = now_s
        for entry in self.entries:
            if entry.progress.completion_tokens > entry.charged_tokens:
                self._charge(entry)
                if entry.charged_tokens >= entry.look_again_at:
                    self._expect_more(entry, entry.charged_tokens)
        capacity = self.allocation.capacity
        if is_busy and capacity.batch is None and capacity.replicas:
            batch = self.allocation.sequences / capacity.replicas
            self._batch += (batch - self._batch) * (1 - exp(-passed_s / _BATCH_S))
            self._is_measured = True
            if abs(self._batch - self._priced_batch) > _NOTABLE * self._priced_batch:
                self.resize(capacity)
        return True

    def service_s(self, demand: Demand) -> float:
        """Until its first token if it began now."""
        allocation = self.allocation
        sequences, kv_tokens = allocation.sequences, allocation.kv_tokens
        if (window := allocation.capacity.window) is not None and sequences:
            kv_tokens = window.tokens_in(kv_tokens // sequences) * sequences
        if sequences > allocation.slots and allocation.capacity.can_pause:  # the others do not run
            kv_tokens = kv_tokens * allocation.slots // sequences
            sequences = allocation.slots
        return service_s(demand, allocation.capacity, self.prefill_tokens, sequences, kv_tokens)

    def drain_s(self) -> float | None:
        """Until all that runs and waits would be done; None while the cost of work is not known."""
        if not self.prices.is_known:
            return None
        work_us = self.remaining_us + sum(lane.waiting_us for lane in self.queue.lanes)
        return work_us / 1e6 / max(self.allocation.capacity.replicas, 1)

    def free_s(self, count: int, now_s: float) -> float | None:
        """Until so many more of those that run have ended, as far as their lengths are known.

        They end in the order of what is left of each, no more than there are slots at a time; those beyond
        the slots begin first in what is freed.
        """
        capacity, allocation = self.allocation.capacity, self.allocation
        if capacity.step is None or not self.prices.token_us or not self.entries:
            return None
        if now_s - self._ends_at_s >= _ENDS_LAST_S or not self._ends_us:
            self._ends_us = sorted(entry.remaining_us for entry in self.entries)
            self._ends_at_s = now_s
        count += max(allocation.sequences - allocation.slots, 0)
        running = min(allocation.sequences, allocation.slots)
        rounds, last = divmod(max(count, 1) - 1, len(self._ends_us))
        before_us = rounds * sum(self._ends_us) + sum(self._ends_us[: last + 1])
        left_us = max(self._ends_us[last], before_us / max(running - allocation.displacing, 1))
        batch = running / max(capacity.replicas, 1)
        step_ms = capacity.step.base_ms + capacity.step.decode_sequence_ms * batch
        return max(left_us / self.prices.token_us * step_ms / 1000 - (now_s - self._ends_at_s), 0.0)

    def lacking(self, entry: QueueEntry) -> float:
        """How many slots have to become free before it may begin; none where that is not above 0.

        Heavy tenants leave headroom to those who have less. Where there is hardly time to wait, turns decide
        little: what becomes free goes to whoever asks next, and that is mostly the one that asks most.
        What is paused for others has to be ended later, so headroom is better left before it is needed; the
        less of it the longer a request of the tier can wait, since slots become free meanwhile.
        """
        to_leave = self.queue.to_leave(entry)
        if not to_leave:
            return 0.0
        allocation = self.allocation
        if allocation.capacity.can_pause:
            to_leave = min(to_leave, int(_LEFT_PART * allocation.slots))
            if not to_leave:
                return 0.0
        # They end evenly over twice the time that what is in flight takes on average.
        waited_us = 1e6 * allocation.capacity.replicas * self.patience_s[entry.demand.tier]
        freed = allocation.slots * waited_us / (2 * self.remaining_us + 1)
        to_leave *= to_leave / (to_leave + _COUNTED * freed)
        return to_leave + allocation.size_of(entry) - allocation.left_slots(entry.demand.tier)

    def _charge(self, entry: QueueEntry) -> None:
        """For the tokens that have come since."""
        tokens = entry.progress.completion_tokens
        new = tokens - entry.charged_tokens
        entry.charged_tokens = tokens
        service_us = self.prices.tokens_us(new, entry.context_tokens + tokens / 2)
        self.remaining_us -= self.queue.charge(entry, service_us)

    def _expect_more(self, entry: QueueEntry, tokens: int) -> None:
        """It is longer than most: how much longer is judged by those that were, and cache reserved for it."""
        demand = entry.demand
        sequences = max(demand.sequences, 1)
        each = tokens // sequences
        left = self._lengths.remaining(demand.tenant, per_sequence(demand), each)
        more = left.mean * demand.sequences
        remaining_us = self.prices.tokens_us(more, demand.prompt_tokens / sequences + each / 2)
        self.remaining_us += remaining_us - entry.remaining_us
        self.queue.lanes[demand.tier].running_us += remaining_us - entry.remaining_us
        entry.remaining_us = remaining_us
        entry.look_again_at = tokens + max(more // 2, 16)
        capacity = self.allocation.capacity
        if kv_need(demand, each, capacity) + capacity.block_tokens > entry.kv_tokens:
            wanted = kv_need(demand, each + left.p50, capacity)
            if wanted > entry.kv_tokens:
                self.allocation.grow(entry, wanted - entry.kv_tokens)

    def check(self) -> None:
        assert self.remaining_us == sum(entry.remaining_us for entry in self.entries)
        assert self.remaining_us == sum(lane.running_us for lane in self.queue.lanes)
        assert self.prefill_tokens == sum(entry.prefill_tokens for entry in self.entries)
        assert all(entry.remaining_us >= 0 for entry in self.entries)


def _first_batch(capacity: Capacity) -> float:
    replicas = max(capacity.replicas, 1)
    if capacity.batch is not None:
        return min(max(capacity.slots / (2 * replicas), 1.0), _LARGEST_BATCH)
    held = capacity.slots if capacity.kv_tokens is None else capacity.kv_tokens / _USUAL_TOKENS
    return min(max(min(capacity.slots, held) / replicas, 1.0), _LARGEST_BATCH)
