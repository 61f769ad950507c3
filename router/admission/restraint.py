"""Who has much leaves the last of the room to those who have less.

Where there is hardly time to wait, turns decide nothing: what becomes free goes to whoever asks next, and that
is mostly the one that asks most. What has begun is not taken back, so room must be left before it is needed.
How much: what tenants have under way goes up and down by about the root of it. So each leaves room by what
those of its tier have under way who have less than itself; one that has nothing leaves none, nor does one that
is alone.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router.admission.lanes import Tenant

_ROOTS = 2.0
_POWER = 2
_BINS = 64


def bin_of(size: float) -> int:
    """Below 8 each whole size has its own, then four to each doubling."""
    whole = int(size)
    if whole < 8:
        return whole
    octave = whole.bit_length()
    return min(4 * octave - 8 + ((whole >> (octave - 3)) & 3), _BINS - 1)


class Holdings:
    """What the tenants of one tier have under way, in places, by how much each has for its weight."""

    def __init__(self) -> None:
        self._of_bin = [0] * _BINS
        self._top = 0  # the bin of the one that has most

    def add(self, tenant: Tenant, size: int) -> None:
        of_bin = self._of_bin
        of_bin[tenant.bin] -= tenant.size
        tenant.size += size
        tenant.bin = bin_of(tenant.size / tenant.weight)
        of_bin[tenant.bin] += tenant.size
        top = max(self._top, tenant.bin)
        while top and not of_bin[top]:
            top -= 1
        self._top = top

    def to_leave(self, tenant: Tenant) -> float:
        """So many places have to be left free for it to take one more."""
        if not tenant.bin:
            return 0.0
        of_most = tenant.size / tenant.weight / _least_of(self._top)
        return _ROOTS * sqrt(sum(self._of_bin[: tenant.bin])) * min(of_most, 1.0) ** _POWER


def _least_of(index: int) -> int:
    if index < 8:
        return index
    octave, quarter = divmod(index + 8, 4)
    return (4 + quarter) << (octave - 3)
