"""Which slots and how much of the cache are taken, and which tiers may take more.

Each tier has a guaranteed share. Beyond it a tier may borrow what nobody uses, but not the last of it: that
is kept for better tiers, where they had requests recently. The best tier may have everything. Without the
guarantee such a reserve would be plain priority, and the other tiers would starve.

Of the cache as much is reserved as all that run together stay within nine times of ten. That is less than the
sum of what each stays within, since they are not all long at once: their deviations add up in squares.

Where other routers use the same engine, all this is about this router's current share of it.
"""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING

from python_backend.wire.tiers import Tier
from router.admission.capacity import Capacity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router.admission.demand import QueueEntry

# A reserve for a tier without requests for so long is a waste.
_REMEMBERED_S = 60.0
LOOK_S = 0.1


class Allocation:
    """What is taken of a capacity: each entry takes once and releases the same once."""

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
        slots, budget = self.slots, self._kv
        return max(entry.sequences, entry.kv_tokens * slots // budget if budget else 0)

    def take(self, entry: QueueEntry) -> None:
        entry.size = self.size_of(entry)
        self._add(entry, 1)

    def give_back(self, entry: QueueEntry) -> None:
        self._add(entry, -1)

    def grow(self, entry: QueueEntry, kv_tokens: int) -> None:
        """A running entry needs more of the cache than expected."""
        self._kv_usual += kv_tokens
        self.kv_tokens += kv_tokens
        self._kv_of[entry.demand.tier] += kv_tokens
        entry.kv_tokens += kv_tokens

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
