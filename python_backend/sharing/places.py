"""Who gives way where all places are taken: a decision, the same in the router, the engine and the simulator.

Tiers have a guaranteed part of the places, and tenants of a tier equal parts for their weights. A place goes
from the tenant that is furthest above its part to one that is below, and only if the giver still has at least
as much for its weight afterwards. So no two ever take the same place from each other in turn.
"""

from __future__ import annotations

from python_backend.wire.tiers import Tier

GUARANTEES = {Tier.INTERACTIVE: 0.6, Tier.STANDARD: 0.3, Tier.BATCH: 0.1}
_GUARANTEES = tuple(GUARANTEES[tier] for tier in Tier)

Holder = tuple[int, str]  # a tier, and a tenant in it


class Places:
    """How many places each tenant holds in each tier."""

    __slots__ = ("_held", "_of_tier", "_trimmed", "_weights", "changes", "total")

    def __init__(self) -> None:
        self._held: list[dict[str, int]] = [{} for _ in Tier]
        self._of_tier = [0 for _ in Tier]
        self._weights: dict[Holder, float] = {}  # those that are not 1
        self.total = 0
        self.changes = 0  # so that nobody need look again before there were some
        self._trimmed: tuple[int, int, Places] | None = None

    def held(self, holder: Holder) -> int:
        return self._held[holder[0]].get(holder[1], 0)

    def held_for_weight(self, holder: Holder) -> float:
        return self.held(holder) / self._weights.get(holder, 1.0)

    @property
    def tenants(self) -> int:
        """How many hold any; one in two tiers counts twice."""
        return sum(map(len, self._held))

    def take(self, holder: Holder, weight: float = 1.0, count: int = 1) -> None:
        tier, tenant = holder
        held = self._held[tier]
        held[tenant] = held.get(tenant, 0) + count
        self._of_tier[tier] += count
        self.total += count
        self.changes += 1
        if weight != 1.0:
            self._weights[holder] = weight
        else:
            self._weights.pop(holder, None)

    def give_back(self, holder: Holder, count: int = 1) -> None:
        tier, tenant = holder
        held = self._held[tier]
        left = held[tenant] - count
        self._of_tier[tier] -= count
        self.total -= count
        self.changes += 1
        if left:
            held[tenant] = left
        else:
            del held[tenant]
            self._weights.pop(holder, None)

    def furthest(self) -> Holder | None:
        """Who has most for its part: the one to give up a place where there are too many."""
        tiers = [tier for tier in Tier if self._of_tier[tier]]
        return self._furthest_of(max(tiers, key=self._order)) if tiers else None

    def lightest(self) -> Holder | None:
        """The tenant with least, where the furthest could give it a place; None: all are even."""
        furthest = self.furthest()
        if furthest is None or self.total < 3:
            return None
        holders = [(tier, tenant) for tier in Tier for tenant in self._held[tier]]
        least = min(holders, key=lambda holder: (self.held_for_weight(holder), holder))
        most = (self.held(furthest) - 1) / self._weights.get(furthest, 1.0)
        return least if most >= (self.held(least) + 1) / self._weights.get(least, 1.0) else None

    def giver(self, taker: Holder, places: int, weight: float = 1.0) -> Holder | None:
        """Who gives one of `places` places to one more of the taker's; None where it has its part already.

        It is of the same tier, or of a better one that is above its guarantee. Where more are counted than
        there are places, the surplus counts as given up by those furthest above.
        """
        if not self._may_gain(taker, weight):
            return None
        return self._trimmed_to(places)._giver(taker, places, weight)

    def may_preempt(self, taking: int, giving: int, places: int) -> bool:
        """Whether a better tier takes from a worse: what it can spare, or up to its own guarantee."""
        return self._can_spare(giving, places) or self._is_below(taking, places)

    def copy(self) -> Places:
        copied = Places()
        copied._held = [dict(held) for held in self._held]
        copied._of_tier = list(self._of_tier)
        copied._weights = dict(self._weights)
        copied.total = self.total
        return copied

    def check(self) -> None:
        assert self._of_tier == [sum(held.values()) for held in self._held]
        assert self.total == sum(self._of_tier)
        assert all(count > 0 for held in self._held for count in held.values())

    def _trimmed_to(self, places: int) -> Places:
        if self.total <= places:
            return self
        if self._trimmed is None or self._trimmed[:2] != (self.changes, places):
            left = self.copy()
            while left.total > places and (surplus := left.furthest()) is not None:
                left.give_back(surplus)
            self._trimmed = self.changes, places, left
        return self._trimmed[2]

    def _may_gain(self, taker: Holder, weight: float) -> bool:
        """Quick, and right where it says no: most that ask have most already."""
        tier = taker[0]
        if any(self._of_tier[:tier]):
            return True
        wanted = (self.held(taker) + 1) / weight
        return any(
            (count - 1) / self._weights.get((tier, tenant), 1.0) >= wanted
            for tenant, count in self._held[tier].items()
        )

    def _giver(self, taker: Holder, places: int, weight: float) -> Holder | None:
        mine = taker[0]
        if self._is_below(mine, places):
            sparing = [tier for tier in Tier if tier < mine and self._can_spare(tier, places)]
            if sparing:
                return self._furthest_of(max(sparing, key=self._order))
        if not self._of_tier[mine]:
            return None
        giver = self._furthest_of(mine)
        left = (self.held(giver) - 1) / self._weights.get(giver, 1.0)
        return giver if giver != taker and left >= (self.held(taker) + 1) / weight else None

    def _order(self, tier: int) -> tuple[float, int]:
        return self._of_tier[tier] / _GUARANTEES[tier], tier

    def _can_spare(self, tier: int, places: int) -> bool:
        return self._of_tier[tier] - 1 >= _GUARANTEES[tier] * places

    def _is_below(self, tier: int, places: int) -> bool:
        return self._of_tier[tier] < _GUARANTEES[tier] * places

    def _furthest_of(self, tier: int) -> Holder:
        held, weights = self._held[tier], self._weights
        return tier, max(held, key=lambda tenant: (held[tenant] / weights.get((tier, tenant), 1.0), tenant))
