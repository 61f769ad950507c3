"""Who has much leaves the last of the room to those who have less.

Where there is hardly time to wait, turns decide little: what becomes free goes to whoever asks next, and that
is mostly the one that asks most. What has begun is not taken back, so room must be left before it is needed.

What tenants have under way goes up and down by about the root of it. So much is left, by those who have most,
for those of their tier who have less: the less of it the further somebody is from having most, and the longer
one can wait in that tier, since places become free meanwhile. Who is alone in its tier leaves nothing.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

from router.admission.pricing import BINS, bin_of, top_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from python_backend.wire.tiers import Tier
    from router.admission.demand import Place
    from router.admission.lane import Tenant
    from router.admission.queue import Turns
    from router.admission.room import Room
    from router.admission.running import UnderWay

_ROOTS = 2.0
# Of the places that become free while one waits, so many stand for places that were left.
_COUNTED = 0.25
# Weights are up to 1,000: sizes for a weight are told apart by this.
_FINE = 64


class Holdings:
    """What the tenants of one tier have under way, in places, by how much each has for its weight."""

    def __init__(self) -> None:
        self._of_bin = [0] * BINS
        self._top = 0  # the bin of those who have most

    def add(self, tenant: Tenant, size: int) -> None:
        of_bin = self._of_bin
        of_bin[tenant.bin] -= tenant.size
        tenant.size += size
        tenant.bin = bin_of(int(_FINE * tenant.size / tenant.weight))
        of_bin[tenant.bin] += tenant.size
        top = tenant.bin if tenant.bin > self._top else self._top
        while top and not of_bin[top]:
            top -= 1
        self._top = top

    def to_leave(self, tenant: Tenant) -> float:
        """So many places one would have to leave free to take one more, if nobody could wait at all."""
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


class Restraint:
    """Judges by what is under way at the moment: nothing has to be remembered."""

    def __init__(
        self, room: Room, turns: Turns, under_way: UnderWay, patience_s: Mapping[Tier, float]
    ) -> None:
        self._room = room
        self._turns = turns
        self._under_way = under_way
        self._patience_s = patience_s  # of the tiers, as it was last seen

    def lacking(self, place: Place) -> float:
        """So many places have to become free before it may begin; none where that is not above 0."""
        to_leave = self._turns.to_leave(place)
        if not to_leave:
            return 0.0
        room = self._room
        places, replicas = room.capacity.places_here, room.capacity.replicas
        # As they end evenly over twice the time that what is under way takes on the average.
        waited_us = 1e6 * replicas * self._patience_s[place.demand.tier]
        freed = places * waited_us / (2 * self._under_way.remaining_us + 1)
        to_leave *= to_leave / (to_leave + _COUNTED * freed)
        return to_leave + room.size_of(place) - room.left_places(place.demand.tier)

    def holds_back(self, place: Place) -> bool:
        return self.lacking(place) > 0
