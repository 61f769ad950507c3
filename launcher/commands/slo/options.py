"""What people write on the command line about objectives, read into values, and how times are told."""

from __future__ import annotations

import re

from python_backend.wire.tiers import Tier, tier_named
from router.core.objective import LEAST_S, MOST_S

ALL = "all"
NONE = "none"
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0}


def duration_s(option: str, text: str) -> float | None:
    """None for `none`, which takes an objective back."""
    if text == NONE:
        return None
    if not (parts := re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(ms|s|m)", text)):
        allowed = "a number with ms, s or m, such as 500ms, 1.5s or 2m; or none"
        raise ValueError(f"{option}: {text[:40]!r} is not a duration; allowed: {allowed}")
    time_s = float(parts[1]) * _UNITS_S[parts[2]]
    if not LEAST_S <= time_s <= MOST_S:
        allowed = f"{LEAST_S * 1000:g}ms to {MOST_S / 60:g}m"
        raise ValueError(f"{option}: {text} is out of range; allowed: {allowed}")
    return time_s


def tiers(text: str) -> tuple[Tier, ...]:
    if text == ALL:
        return tuple(Tier)
    try:
        return (tier_named(text),)
    except ValueError:
        allowed = ", ".join((*(tier.label for tier in Tier), ALL))
        raise ValueError(f"--tier: there is no tier {text[:40]!r}; allowed: {allowed}") from None


def told(time_s: float | None, digits: int = 3) -> str:
    """For people: so many digits of it, in the unit that suits it."""
    if time_s is None:
        return ""
    if time_s < 0.9995:
        return f"{time_s * 1000:.{digits}g} ms"
    return f"{time_s:.{digits}g} s" if time_s < 600 else f"{time_s / 60:.{digits}g} min"


def written(time_s: float) -> str:
    """As it can be given to an option again."""
    return f"{time_s * 1000:.6g}ms" if time_s < 1 else f"{time_s:.6g}s"
