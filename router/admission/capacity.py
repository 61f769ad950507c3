"""What the open replicas of a release can do together, by engines and Triton, and what of it is taken."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isqrt
from typing import TYPE_CHECKING

from python_backend.costs.step_cost import StepCost
from python_backend.wire.tiers import Tier
from router.admission.demand import Need

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from python_backend.costs.batch_cost import BatchCost
    from python_backend.wire.engine_report import EngineReport
    from router.admission.demand import QueueEntry

# More than there will ever be: nothing waits where the capacity is unknown.
UNLIMITED = 1 << 30
# Of a batch model one batch is computed while the next one fills.
BATCHES_IN_FLIGHT = 2
# The largest share of the cache that one request counts for: the rest is for answers longer than expected.
_LARGEST_SHARE = 0.9
# A reserve for a tier without requests for so long is a waste.
_REMEMBERED_S = 60.0
LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the open replicas of a release can do, all together.

    `slots` is how many sequences (or rows) may be in flight; `kv_tokens` what the caches hold, None where
    that is not the limit. `holds_whole_answers`: a sequence reserves the cache of all it may ever generate
    when it begins. `step_tokens` is the most that one step of one replica computes. Where neither cost is
    known nothing can be predicted, and requests are admitted by slots and cache alone. Where other routers
    use the same replicas, `own_slots` and `own_kv_tokens` are this router's share; None is all.
    """

    replicas: int
    slots: int
    kv_tokens: int | None = None
    block_tokens: int = 1
    holds_whole_answers: bool = False
    step_tokens: int = 512
    step: StepCost | None = None
    batch: BatchCost | None = None
    own_slots: int | None = None
    own_kv_tokens: int | None = None

    @property
    def slots_here(self) -> int:
        return self.slots if self.own_slots is None else self.own_slots

    @property
    def kv_tokens_here(self) -> int | None:
        return self.kv_tokens if self.own_kv_tokens is None else self.own_kv_tokens


UNKNOWN = Capacity(replicas=1, slots=UNLIMITED)


@dataclass(frozen=True, slots=True)
class BatchShape:
    """How a Triton model batches rows: `rows` 0 is one without batches, `instances` 0 one that has none."""

    rows: int
    instances: int = 1
    is_decoupled: bool = False

    @property
    def slots(self) -> int:
        """Rows that may be in flight on one server."""
        if self.is_decoupled or self.instances == 0:
            return UNLIMITED
        return BATCHES_IN_FLIGHT * max(self.rows, 1) * self.instances


def of_engines(reports: Sequence[EngineReport | None]) -> Capacity:
    """Of open replicas of one release; where none of them reports, no limit is applied.

    A replica without a report, as it has just come back, counts like the others: they run the same files.
    """
    known = [report for report in reports if report is not None]
    if not known:
        return UNKNOWN if not reports else replace(UNKNOWN, replicas=len(reports))
    costs = [report.learned.cost for report in known if report.learned is not None]
    slots = sum(report.max_batch_size for report in known)
    kv_tokens = sum(report.total_blocks * report.tokens_per_block for report in known)
    return Capacity(
        replicas=len(reports),
        slots=max(slots * len(reports) // len(known), 1),
        kv_tokens=kv_tokens * len(reports) // len(known) or None,  # one without a cache is not limited by it
        block_tokens=max(report.tokens_per_block for report in known),
        holds_whole_answers=any(report.holds_whole_answers for report in known),
        step_tokens=max(min(report.max_step_tokens for report in known), 1),
        step=_mean(costs) if costs else None,
    )


def of_batches(replicas: int, shape: BatchShape | None, cost: BatchCost | None) -> Capacity:
    if replicas == 0 or shape is None:
        return replace(UNKNOWN, replicas=max(replicas, 1))
    # Of a decoupled model Triton measures how soon it returned, not what the answer took.
    known = None if shape.is_decoupled else cost
    return Capacity(replicas, min(shape.slots * replicas, UNLIMITED), batch=known)


def with_slots(capacity: Capacity, slots: int) -> Capacity:
    """As an operator sets it: 0 is as many as there are, -1 no limit."""
    if slots == 0:
        return capacity
    return replace(capacity, slots=UNLIMITED if slots < 0 else slots)


def fitted(need: Need, capacity: Capacity) -> Need:
    """What it counts for: a request that can only run in parts counts as all there is.

    So its turn comes, and only what would not fit alone is refused as too large.
    """
    sequences = min(need.sequences, capacity.slots)
    prompt, completion = need.prompt_tokens, need.completion_tokens
    if capacity.kv_tokens is not None:
        whole = completion if capacity.holds_whole_answers else 1
        if need.sequences == 1 and prompt + whole > capacity.kv_tokens:
            return need
        # Each ends in a block of its own, with a token at least.
        most, each = int(_LARGEST_SHARE * capacity.kv_tokens), capacity.block_tokens + 1
        sequences = max(min(sequences, most // (2 * each)), 1)
        most -= each * sequences
        prompt = min(prompt, most)
        if capacity.holds_whole_answers:
            completion = min(completion, most - prompt)
    counted = Need(prompt, completion, sequences)
    return need if counted == need else counted


def fitting_tokens(capacity: Capacity) -> int:
    """One sequence of at most so many tokens, prompt and answer, is its own `fitted`."""
    if capacity.slots < 1:
        return -1
    if capacity.kv_tokens is None:
        return UNLIMITED
    return int(_LARGEST_SHARE * capacity.kv_tokens) - capacity.block_tokens - 1


def _mean(costs: Sequence[StepCost]) -> StepCost:
    return StepCost(
        sum(cost.base_ms for cost in costs) / len(costs),
        sum(cost.prefill_token_ms for cost in costs) / len(costs),
        sum(cost.decode_sequence_ms for cost in costs) / len(costs),
        sum(cost.kv_kilotoken_ms for cost in costs) / len(costs),
    )


class Allocation:
    """What is taken of a capacity, and which tiers may take more: each entry takes and releases once.

    Each tier has a guaranteed share. Beyond it a tier may borrow what nobody uses, but not the last of it:
    that is kept for better tiers, where they had requests recently. The best tier may have everything.
    Without the guarantee such a reserve would be plain priority, and the other tiers would starve.

    Of the cache as much is reserved as all that run together stay within nine times of ten. That is less than
    the sum of what each stays within, as they are not all long at once: deviations add up in squares. Where
    other routers use the same engine, all this is about this router's current share of it.
    """

    def __init__(self, guarantees: Mapping[Tier, float], borrow_cap: float, kv_share: float) -> None:
        self._guarantees = [guarantees[tier] for tier in Tier]
        self._borrow_cap = borrow_cap
        self._kv_share = kv_share
        self.capacity = Capacity(replicas=0, slots=0)
        self.kv_budget: int | None = None
        self.slots = 0  # this router's
        self._kv: int | None = None  # this router's share of the budget
        self.sequences = 0
        self.kv_tokens = 0  # reserved for all that run: what they usually take, and the spread of their sum
        self._kv_usual = 0
        self._kv_squares = 0
        # By tier, which is a number: finding it in a dict would take longer than all the rest.
        self._sequences_of = [0 for _ in Tier]
        self._kv_of = [0 for _ in Tier]
        self.asked_s = [float("-inf") for _ in Tier]  # when each tier last had a request
        self._is_kept = [False for _ in Tier]  # whether the last of it is kept from this tier
        self.looked_s = float("-inf")

    def resize(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self.kv_budget = None if capacity.kv_tokens is None else int(self._kv_share * capacity.kv_tokens)
        self.slots = capacity.slots_here
        here = capacity.kv_tokens_here
        self._kv = None if here is None else int(self._kv_share * here)

    def look(self, now_s: float) -> None:
        """Decides anew for whom the last of it is kept, if that was some time ago."""
        if now_s - self.looked_s < LOOK_S:
            return
        self.looked_s = now_s
        is_kept = False
        for tier, asked_s in enumerate(self.asked_s):
            self._is_kept[tier] = is_kept
            is_kept = is_kept or now_s - asked_s <= _REMEMBERED_S

    @property
    def is_full(self) -> bool:
        return self.sequences >= self.slots

    def fits(self, entry: QueueEntry) -> bool:
        """Alone everything fits that was not refused as too large."""
        if self.sequences + entry.sequences > self.slots:
            return self.sequences == 0 and self.slots > 0
        if self._kv is None or self.sequences == 0:
            return True
        spread = isqrt(self._kv_squares + entry.kv_spread * entry.kv_spread)
        return self._kv_usual + entry.kv_tokens + spread <= self._kv

    def is_open(self, tier: Tier) -> bool:
        """Whether the tier may begin one more."""
        if not self._is_kept[tier] or tier is Tier.INTERACTIVE or self.is_guaranteed(tier):
            return True
        return self._part(self.sequences, self._kv_usual) < self._borrow_cap

    def is_guaranteed(self, tier: Tier) -> bool:
        """Whether it has less than its share."""
        return self._part(self._sequences_of[tier], self._kv_of[tier]) < self._guarantees[tier]

    def part_of(self, entry: QueueEntry) -> float:
        """What has to become free for it, of all there is: slots, or cache where that is what it lacks."""
        lacks_kv = self._kv is not None and self.kv_tokens + entry.kv_tokens > self._kv
        return min(self._part(entry.sequences, entry.kv_tokens if lacks_kv else 0), 1.0)

    def left_slots(self, tier: Tier) -> float:
        """That the tier may take: free ones, or what is left of the cache where that is less."""
        used = self._part(self.sequences, self.kv_tokens)
        left = 1.0 - used
        if tier is not Tier.INTERACTIVE and self._is_kept[tier]:
            own = self._guarantees[tier] - self._part(self._sequences_of[tier], self._kv_of[tier])
            left = min(left, max(self._borrow_cap - used, own))
        return left * self.slots

    def size_of(self, entry: QueueEntry) -> int:
        """What it takes, in slots: each slot stands for its share of the cache."""
        size = entry.kv_tokens * self.slots // self._kv if self._kv else 0
        return size if size > entry.sequences else entry.sequences

    def take(self, entry: QueueEntry) -> None:
        size = entry.kv_tokens * self.slots // self._kv if self._kv else 0  # as `size_of` has it
        entry.size = size if size > entry.sequences else entry.sequences
        self._add(entry, 1)

    def give_back(self, entry: QueueEntry) -> None:
        self._add(entry, -1)

    def grow(self, entry: QueueEntry, kv_tokens: int) -> None:
        """A running entry needs more of the cache than expected."""
        entry.kv_tokens += kv_tokens
        self.kv_tokens += kv_tokens
        self._kv_usual += kv_tokens
        self._kv_of[entry.demand.tier] += kv_tokens

    def _add(self, entry: QueueEntry, sign: int) -> None:
        tier, sequences, kv_tokens = entry.demand.tier, sign * entry.sequences, sign * entry.kv_tokens
        self.sequences += sequences
        self._sequences_of[tier] += sequences
        self._kv_usual += kv_tokens
        self._kv_of[tier] += kv_tokens
        self._kv_squares += sign * entry.kv_spread * entry.kv_spread
        self.kv_tokens = self._kv_usual + isqrt(self._kv_squares)

    def _part(self, sequences: int, kv_tokens: int) -> float:
        part = sequences / self.slots if self.slots else 1.0
        if not self._kv:
            return part
        kv_part = kv_tokens / self._kv
        return part if part > kv_part else kv_part

    def check(self, running: list[QueueEntry]) -> None:
        for tier in Tier:
            mine = [entry for entry in running if entry.demand.tier is tier]
            assert self._sequences_of[tier] == sum(entry.sequences for entry in mine)
            assert self._kv_of[tier] == sum(entry.kv_tokens for entry in mine)
        assert self.sequences == sum(self._sequences_of)
        assert self._kv_usual == sum(self._kv_of)
        assert self._kv_squares == sum(entry.kv_spread**2 for entry in running)
        assert self.kv_tokens == self._kv_usual + isqrt(self._kv_squares)
