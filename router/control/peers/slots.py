"""Which part of a release's places is whose, where several routers hand requests on to it.

All routers reckon with the same numbers, so their parts add up to what there is. Where all that run and wait
fit, each has its own and of the rest a part that grows with what it has: one that is idle leaves nearly
everything to the others, and can begin at once all the same. Where they do not fit, each gets as many as the
others, or as it wants if that is less. What others run already is not given away twice: it is waited for,
and meanwhile they begin no more than their part. One place everybody has, so that nobody starves; if need be
the engine's own queue takes it up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Load(NamedTuple):
    """Of one release in one router: sequences that run, those that wait, cache kept for what runs."""

    running: int
    waiting: int
    kv_tokens: int

    @property
    def wanted(self) -> int:
        return self.running + self.waiting


IDLE = Load(0, 0, 0)


class Part(NamedTuple):
    """What one router may have under way."""

    places: int
    kv_tokens: int | None


def part_of(router: str, loads: Mapping[str, Load], places: int, kv_tokens: int | None) -> Part:
    """`loads` has all routers, this one too; `kv_tokens` is None where the cache is no limit."""
    fair = fair_places(router, loads, places)
    others = [load for name, load in loads.items() if name != router]
    own = max(min(fair, places - sum(load.running for load in others)), min(places, 1))
    if kv_tokens is None or not places:
        return Part(own, kv_tokens)
    fair_kv = -(-kv_tokens * fair // places)
    return Part(own, max(min(fair_kv, kv_tokens - sum(load.kv_tokens for load in others)), 0))


def fair_places(router: str, loads: Mapping[str, Load], places: int) -> int:
    """The sum of it over all routers is `places`, or nobody lacks anything."""
    wanted = {name: load.wanted for name, load in loads.items()}
    spare = places - sum(wanted.values())
    if spare >= 0:
        return wanted[router] + spare * (wanted[router] + 1) // (sum(wanted.values()) + len(wanted))
    left = places
    in_order = sorted(wanted, key=lambda name: (wanted[name], name))
    for number, name in enumerate(in_order):
        fair = min(wanted[name], -(-left // (len(in_order) - number)))
        if name == router:
            return fair
        left -= fair
    raise KeyError(router)
