"""How long something lasts, in words for people."""

from __future__ import annotations

_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))


def lasting(time_s: float) -> str:
    """In whole ones of the largest unit of which there are two or more."""
    whole_s = max(0, int(time_s))
    for unit_s, name in _UNITS:
        if whole_s >= 2 * unit_s:
            return f"{whole_s // unit_s} {name}"
    return f"{whole_s} s"
