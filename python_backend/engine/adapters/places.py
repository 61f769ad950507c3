"""Which place an adapter gets: a free one, or that of the one that nobody has used for longest.

Where every place is held by running sequences, the one asked for longest ago is closed: who asks for it now
waits, so that its sequences run out and the place changes hands. So nobody waits for ever, and no sequence
loses its adapter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Who is there (empty: nobody), how many requests hold it, and when it was last asked for."""

    adapter: str = ""
    holders: int = 0
    asked: int = 0


def choose_place(places: Sequence[Place]) -> tuple[int, bool]:
    """The place for a newcomer, and whether it can be had now; where not, it is the one to close."""
    if not places:
        raise ValueError("no slots for adapters are configured")
    order = [
        (bool(place.adapter), place.holders > 0, place.asked, index) for index, place in enumerate(places)
    ]
    _, is_held, _, index = min(order)
    return index, not is_held
