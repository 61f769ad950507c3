"""Shapes of load as pure functions: seconds since the beginning -> the part of the users that is there.

A curve gives 0 to 1 and reaches 1, so that `--users` is the most that are ever there, whatever the shape.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

Curve = Callable[[float], float]

STEADY, RAMP, SPIKE, DIURNAL, TRACE = NAMES = ("steady", "ramp", "spike", "diurnal", "trace")
# The highest of the bars of a trace is all users; more bars show shorter bursts, of fewer requests each.
TRACE_BARS = 60


@dataclass(frozen=True)
class ShapeOptions:
    """`low` is the part of the users that is there between spikes, at night and at a ramp's beginning."""

    duration_s: float
    low: float = 0.2
    spikes: int = 1
    days: int = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.duration_s) and self.duration_s > 0):
            raise ValueError(f"the duration is {self.duration_s} s; it must be above 0")
        if not 0 <= self.low <= 1:
            raise ValueError(f"--low is {self.low:g}; allowed: 0 to 1")
        if self.spikes < 1 or self.days < 1:
            raise ValueError("--spikes and --days are at least 1")


def curve(name: str, options: ShapeOptions, arrivals_s: Sequence[float] = ()) -> Curve:
    """By its name; `trace` follows `arrivals_s`, which are in order."""
    if name == TRACE:
        return burst(options, arrivals_s)
    known = {STEADY: steady, RAMP: ramp, SPIKE: spike, DIURNAL: diurnal}
    if name not in known:
        raise ValueError(f"--shape is {name!r}; allowed: {', '.join(NAMES)}")
    return known[name](options)


def users_at(share: float, most: int) -> int:
    """At least one: with nobody there Locust would take the test for one that has not begun."""
    return max(1, min(most, round(share * most)))


def spawn_rate(now: int, wanted: int, within_s: float = 1.0) -> float:
    """Users a second, so that a change is done before the next is looked at."""
    return max(1.0, abs(wanted - now) / within_s)


def steady(options: ShapeOptions) -> Curve:
    return lambda at_s: 1.0


def ramp(options: ShapeOptions) -> Curve:
    """Evenly from `low` to all at four fifths of the time; they stay for the last fifth."""
    top_s = options.duration_s * 0.8
    return lambda at_s: min(1.0, options.low + (1 - options.low) * max(0.0, at_s) / top_s)


def spike(options: ShapeOptions) -> Curve:
    """All at once in the middle fifth of each of `spikes` equal parts, `low` before and after."""
    part_s = options.duration_s / options.spikes

    def share(at_s: float) -> float:
        within = (max(0.0, at_s) % part_s) / part_s
        return 1.0 if 0.4 <= within < 0.6 else options.low

    return share


def diurnal(options: ShapeOptions) -> Curve:
    """`days` days, from midnight to midnight: fewest then, most at noon, as a cosine."""
    day_s = options.duration_s / options.days

    def share(at_s: float) -> float:
        height = (1 - math.cos(2 * math.pi * at_s / day_s)) / 2
        return options.low + (1 - options.low) * height

    return share


def burst(options: ShapeOptions, arrivals_s: Sequence[float]) -> Curve:
    """As many as came in each of `TRACE_BARS` parts of a trace, stretched to the run and to the users."""
    if not arrivals_s:
        raise ValueError("--shape trace needs a --trace with requests in it")
    begin_s, span_s = arrivals_s[0], (arrivals_s[-1] - arrivals_s[0]) or 1.0
    edges = [begin_s + span_s * number / TRACE_BARS for number in range(TRACE_BARS)]
    cuts = [bisect_left(arrivals_s, edge) for edge in edges] + [len(arrivals_s)]
    counts = [after - before for before, after in pairwise(cuts)]
    highest = max(counts)

    def share(at_s: float) -> float:
        bar = int(max(0.0, at_s) / options.duration_s * TRACE_BARS)
        return counts[min(bar, TRACE_BARS - 1)] / highest

    return share
