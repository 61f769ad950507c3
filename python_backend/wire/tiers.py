"""The priority classes of requests, the same for the router and the engine."""

from __future__ import annotations

from enum import IntEnum


class Tier(IntEnum):
    """A lower number goes first and may take the place of a higher one."""

    INTERACTIVE = 0
    STANDARD = 1
    BATCH = 2

    @property
    def label(self) -> str:
        return self.name.lower()


def tier_named(name: str | None) -> Tier:
    """None is what nobody asked for: the standard one. Raises ValueError for what is no tier."""
    if name is None:
        return Tier.STANDARD
    for tier in Tier:
        if tier.label == name:
            return tier
    raise ValueError(f"there is no tier {name!r}; allowed: {', '.join(tier.label for tier in Tier)}")
