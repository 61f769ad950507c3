"""This router's part of a release's slots, where several routers send requests to it.

All routers compute with the same numbers, so their parts add up to what there is. Where all that run and wait
fit, each has its own, and of the rest a part that grows with what it has: an idle one leaves nearly
everything to the others, and can still begin at once. Where they do not fit, each gets as many as the
others, or as it wants if that is less. What others run already is not given away twice: it is waited for,
and meanwhile they begin no more than their part. Everybody has one slot, so that nobody starves; if need be
the engine's own queue absorbs it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from router.admission.capacity import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router.admission.capacity import Capacity


class Load(NamedTuple):
    """Of one release in one router: sequences that run, those that wait, cache reserved for what runs."""

    running: int
    waiting: int
    kv_tokens: int

    @property
    def wanted(self) -> int:
        return self.running + self.waiting


IDLE = Load(0, 0, 0)


class Part(NamedTuple):
    """What one router may have in flight."""

    slots: int
    kv_tokens: int | None


def part_of(router: str, loads: Mapping[str, Load], slots: int, kv_tokens: int | None) -> Part:
    """`loads` has all routers, this one too; `kv_tokens` is None where the cache is no limit."""
    fair = fair_slots(router, loads, slots)
    others = [load for name, load in loads.items() if name != router]
    own = max(min(fair, slots - sum(load.running for load in others)), min(slots, 1))
    if kv_tokens is None or not slots:
        return Part(own, kv_tokens)
    fair_kv = -(-kv_tokens * fair // slots)
    return Part(own, max(min(fair_kv, kv_tokens - sum(load.kv_tokens for load in others)), 0))


def fair_slots(router: str, loads: Mapping[str, Load], slots: int) -> int:
    """Its sum over all routers is `slots`, or nobody lacks anything."""
    wanted = {name: load.wanted for name, load in loads.items()}
    spare = slots - sum(wanted.values())
    if spare >= 0:
        return wanted[router] + spare * (wanted[router] + 1) // (sum(wanted.values()) + len(wanted))
    left = slots
    in_order = sorted(wanted, key=lambda name: (wanted[name], name))
    for number, name in enumerate(in_order):
        fair = min(wanted[name], -(-left // (len(in_order) - number)))
        if name == router:
            return fair
        left -= fair
    raise KeyError(router)


class PeerLoads:
    """What each router last reported of each release; `own` is this router's report, under its `name`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.own: Mapping[str, Load] = {}
        self.others: dict[str, dict[str, Load]] = {}  # by release, then by router

    def share_of(self, release: str, capacity: Capacity) -> Capacity:
        """With this router's part of it; without reports of others that is all."""
        others = self.others.get(release)
        if not others or capacity.slots >= UNLIMITED:
            return replace(capacity, own_slots=None, own_kv_tokens=None)
        loads = {**others, self.name: self.own.get(release, IDLE)}
        part = part_of(self.name, loads, capacity.slots, capacity.kv_tokens)
        return replace(capacity, own_slots=part.slots, own_kv_tokens=part.kv_tokens)
