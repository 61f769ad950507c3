"""What the engine has left: places and cache, and which tiers may take of it.

Each tier has a guaranteed part. Beyond it a tier may borrow what nobody uses, but not the last of it: that is
kept for better tiers, where they were asked for of late. The best tier may have everything. Without the
guarantee such a reserve would be plain priority, and the other tiers would starve.

Of the cache as much is kept as all that run together stay within nine times of ten. That is less than the sum
of what each stays within, since they are not all long at once: what they differ by adds up in squares.

Where other routers use the same engine, all this is about the part of it that is this router's at the moment.
"""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING

from python_backend.wire.tiers import Tier
from router.admission.demand import Capacity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router.admission.demand import Place

# A reserve for a tier that nobody has asked for in so long is a waste.
_REMEMBERED_S = 60.0
_LOOK_S = 0.1


class Room:
    """The books of what is taken: each place takes once and gives the same back once."""

    def __init__(self, guarantees: Mapping[Tier, float], borrow_cap: float, kv_share: float) -> None:
        self._guarantees = [guarantees[tier] for tier in Tier]
        self._borrow_cap = borrow_cap
        self._kv_share = kv_share
        self.capacity = Capacity(replicas=0, places=0)
        self.kv_budget: int | None = None
        self._places = 0
        self._kv: int | None = None  # of the budget, what is this router's
        self.sequences = 0
        self._kv_usual = 0
        self._kv_squares = self._kv_spread = 0
        # By tier, which is a number: finding it in a dict would take longer than all the rest.
        self._sequences_of = [0 for _ in Tier]
        self._kv_of = [0 for _ in Tier]
        self._asked_s = [float("-inf") for _ in Tier]
        self._is_kept = [False for _ in Tier]  # whether the last of it is kept from this tier
        self._looked_s = float("-inf")

    def resize(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self.kv_budget = None if capacity.kv_tokens is None else int(self._kv_share * capacity.kv_tokens)
        self._places = capacity.places_here
        here = capacity.kv_tokens_here
        self._kv = None if here is None else int(self._kv_share * here)

    def asked(self, tier: Tier, now_s: float) -> None:
        self._asked_s[tier] = now_s

    def look(self, now_s: float) -> None:
        """Judges anew for whom the last of it is kept, if that is some time ago."""
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        is_kept = False
        for tier, asked_s in enumerate(self._asked_s):
            self._is_kept[tier] = is_kept
            is_kept = is_kept or now_s - asked_s <= _REMEMBERED_S

    @property
    def is_full(self) -> bool:
        return self.sequences >= self._places

    @property
    def kv_tokens(self) -> int:
        """What is kept for all that run."""
        return self._kv_usual + self._kv_spread

    def fits(self, place: Place) -> bool:
        """Alone everything fits that was not refused as too large."""
        if self.sequences + place.sequences > self._places:
            return self.sequences == 0 and self._places > 0
        if self._kv is None or self.sequences == 0:
            return True
        spread = isqrt(self._kv_squares + place.kv_spread * place.kv_spread)
        return self._kv_usual + place.kv_tokens + spread <= self._kv

    def is_open(self, tier: Tier) -> bool:
        """Whether the tier may begin one more."""
        if tier is Tier.INTERACTIVE or not self._is_kept[tier] or self.is_guaranteed(tier):
            return True
        return self._part(self.sequences, self._kv_usual) < self._borrow_cap

    def is_guaranteed(self, tier: Tier) -> bool:
        """Whether it has less than its part."""
        return self._part(self._sequences_of[tier], self._kv_of[tier]) < self._guarantees[tier]

    def part_of(self, place: Place) -> float:
        """What has to become free for it, of all there is: places, or cache where that is what it lacks."""
        lacks_kv = self._kv is not None and self.kv_tokens + place.kv_tokens > self._kv
        return min(self._part(place.sequences, place.kv_tokens if lacks_kv else 0), 1.0)

    def left_places(self, tier: Tier) -> float:
        """That the tier may take: free ones, or what is left of the cache where that is less."""
        used = self._part(self.sequences, self.kv_tokens)
        left = 1.0 - used
        if tier is not Tier.INTERACTIVE and self._is_kept[tier]:
            own = self._guarantees[tier] - self._part(self._sequences_of[tier], self._kv_of[tier])
            left = min(left, max(self._borrow_cap - used, own))
        return left * self._places

    def size_of(self, place: Place) -> int:
        """What it takes, in places: of the cache each place has its part."""
        places, budget = self._places, self._kv
        return max(place.sequences, place.kv_tokens * places // budget if budget else 0)

    def take(self, place: Place) -> None:
        place.size = self.size_of(place)
        self._add(place.demand.tier, place.sequences, place.kv_tokens)
        self._kv_squares += place.kv_spread * place.kv_spread
        self._kv_spread = isqrt(self._kv_squares)

    def give_back(self, place: Place) -> None:
        self._add(place.demand.tier, -place.sequences, -place.kv_tokens)
        self._kv_squares -= place.kv_spread * place.kv_spread
        self._kv_spread = isqrt(self._kv_squares)

    def grow(self, place: Place, kv_tokens: int) -> None:
        """A running place needs more of the cache than was thought."""
        self._add(place.demand.tier, 0, kv_tokens)
        place.kv_tokens += kv_tokens

    def _add(self, tier: Tier, sequences: int, kv_tokens: int) -> None:
        self.sequences += sequences
        self._kv_usual += kv_tokens
        self._sequences_of[tier] += sequences
        self._kv_of[tier] += kv_tokens

    def _part(self, sequences: int, kv_tokens: int) -> float:
        part = sequences / self._places if self._places else 1.0
        if not self._kv:
            return part
        kv_part = kv_tokens / self._kv
        return part if part > kv_part else kv_part

    def check(self, running: list[Place]) -> None:
        for tier in Tier:
            mine = [place for place in running if place.demand.tier is tier]
            assert self._sequences_of[tier] == sum(place.sequences for place in mine)
            assert self._kv_of[tier] == sum(place.kv_tokens for place in mine)
        assert self.sequences == sum(self._sequences_of)
        assert self._kv_usual == sum(self._kv_of)
        assert self._kv_squares == sum(place.kv_spread**2 for place in running)
