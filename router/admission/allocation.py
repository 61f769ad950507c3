"""What is taken of a release's capacity: by each tier, and by each tenant of one."""

from __future__ import annotations

from collections import OrderedDict
from math import isqrt, sqrt
from typing import TYPE_CHECKING

from python_backend.sharing.places import Places
from python_backend.wire.tiers import Tier
from router.admission.capacity import Capacity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router.admission.demand import QueueEntry


# A reserve for a tier without requests for so long is a waste.
REMEMBERED_S = 60.0
LOOK_S = 0.1
# Others are paused at once for who has no more time than this, and for who has after a part of it.
URGENT_S, PATIENT_PART = 10.0, 0.25
# So many may be begun at a time for which others are paused, of all slots; of that each tier its guarantee.
_LEAST_DISPLACING, _DISPLACING_PART = 10, 0.25


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
        self.places = Places()
        self.sequences = 0
        self.kv_tokens = 0  # reserved for all that run: what they usually take, and the spread of their sum
        self._kv_usual = 0
        self._kv_squares = 0
        # By tier, which is a number: finding it in a dict would take longer than all the rest.
        self._sequences_of = [0 for _ in Tier]
        self._kv_of = [0 for _ in Tier]
        self._displacing_of = [0 for _ in Tier]
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
            is_kept = is_kept or now_s - asked_s <= REMEMBERED_S

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

    @property
    def displacing(self) -> int:
        """Sequences that began beside all that there was capacity for."""
        return sum(self._displacing_of)

    def displaces_now(self, entry: QueueEntry, now_s: float) -> bool:
        """Whether it is to be begun for which others are paused: one that can wait does so for a while."""
        patience_s, waited_s = entry.deadline_s - entry.offered_s, now_s - entry.offered_s
        is_due = waited_s >= PATIENT_PART * patience_s
        if is_due and entry.is_light:  # what such tenants ask for has its bound
            return self.capacity.can_pause and self.places.total > 0
        return (is_due or patience_s <= URGENT_S) and self.displaces(entry)

    def has_little(self, entry: QueueEntry) -> bool:
        """Whether its tenant has half as much as the one with most, or less: its turn comes soon."""
        places = self.places
        if not self.capacity.can_pause or (furthest := places.furthest()) is None:
            return False
        holder = (int(entry.demand.tier), entry.demand.tenant)
        mine = places.held(holder) / (entry.weight or 1.0)
        return holder[0] <= furthest[0] and 2 * max(mine, 1.0) <= places.held_for_weight(furthest)

    def displaces(self, entry: QueueEntry) -> bool:
        """Whether the engine would pause others for it, as its tenant has less than its part.

        Of each tier only a few do at a time: what is paused has to be ended some time, too. But the first of
        a tenant that asks for little does not wait for those of others.
        """
        places, tier = self.places, entry.demand.tier
        if not self.capacity.can_pause or not places.total:
            return False
        holder = (int(tier), entry.demand.tenant)
        if entry.is_light and not places.held(holder):
            return True
        most = max(_LEAST_DISPLACING, _DISPLACING_PART * self.slots)
        if not entry.is_light:
            most *= self._guarantees[tier]
        if self._displacing_of[tier] + entry.sequences > most:
            return False
        if entry.is_light:
            return True
        limit = max(min(self.slots, places.total), 1)
        for number in range(entry.sequences):
            if places.giver(holder, limit, entry.weight) is None:
                return False
            if number + 1 < entry.sequences:
                places = self.places.copy() if places is self.places else places
                places.take(holder, entry.weight)
        return True

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
        entry.is_displacing = self.sequences + entry.sequences > self.slots
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
        if entry.is_displacing:
            self._displacing_of[tier] += sequences
        if entry.sequences and sign > 0:
            self.places.take((int(tier), entry.demand.tenant), entry.weight, sequences)
        elif entry.sequences:
            self.places.give_back((int(tier), entry.demand.tenant), -sequences)
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
        assert self.sequences == sum(self._sequences_of) == self.places.total
        self.places.check()
        assert self._kv_usual == sum(self._kv_of)
        assert self._kv_squares == sum(entry.kv_spread**2 for entry in running)
        assert self.kv_tokens == self._kv_usual + isqrt(self._kv_squares)


_OCTAVES = 20  # a million tokens
BINS = 4 * _OCTAVES


def bin_of(tokens: int) -> int:
    """Four bins to each doubling; below 8 each length has its own."""
    if tokens < 8:
        return max(tokens, 0)
    octave = tokens.bit_length()
    return min(4 * octave - 8 + ((tokens >> (octave - 3)) & 3), BINS - 1)


def top_of(index: int) -> int:
    """The longest that falls into a bin."""
    if index < 8:
        return index
    octave, quarter = divmod(index + 8, 4)
    return ((5 + quarter) << (octave - 3)) - 1


# Of most lengths without a call.
SMALL_BINS = tuple(bin_of(tokens) for tokens in range(4096))


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
