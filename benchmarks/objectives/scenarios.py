"""The runs of the arena: which plan is sent how, and what it has to show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.objectives.arrivals import at_rate, burst, flood
from loadtest.traces import Trace
from python_backend.wire.tiers import Tier

FLOODER = "flooder"
# The code trace of Azure has 67 requests in one second on a mean of 2.6.
BURST_TIMES = 26
BURST_AT_S = 15.0
# Together the others ask for so much of the capacity, so that alone they are all served.
OTHERS, FLOOD = 0.6, 3.0
RETRIES = 5


@dataclass(frozen=True)
class Policy:
    """How requests are let in: the router's settings, and what `inflight simulate` calls it.

    First come, first served knows no tiers, which the engine would put in order; the simulator's engine does.
    """

    name: str
    simulated: str | None
    settings: Mapping[str, Any]
    tells_tier: bool


POLICIES = (
    Policy("objectives", "objectives", {"admission": "objectives"}, True),
    Policy("concurrency cap", "cap", {"admission": "first_come", "admission_places": 0}, True),
    Policy("first come", None, {"admission": "first_come", "admission_places": -1}, False),
)


@dataclass(frozen=True)
class Run:
    """One plan; `times` is the rate in capacities of the engine."""

    name: str
    times: float
    plan: Trace = field(repr=False)
    retries: int = 0


def overload(trace: Trace, capacity_per_s: float, factors: Sequence[float], seconds: float) -> Iterator[Run]:
    for times in factors:
        yield Run(f"{times:g}x", times, at_rate(trace, times * capacity_per_s, seconds))


def retry_storm(trace: Trace, capacity_per_s: float, times: float, seconds: float) -> Iterator[Run]:
    """Whoever is refused comes back at once, whatever it is told."""
    yield Run(f"{times:g}x, retries", times, at_rate(trace, times * capacity_per_s, seconds), RETRIES)


def noisy_tenant(trace: Trace, capacity_per_s: float, seconds: float) -> Iterator[Run]:
    """The others alone, and then with one who alone asks for several times what there is."""
    others = at_rate(trace, OTHERS * capacity_per_s, seconds)
    yield Run("alone", OTHERS, others)
    more = flood(others, FLOODER, Tier.STANDARD, FLOOD * capacity_per_s, seconds)
    yield Run("flooded", OTHERS + FLOOD, others.and_also(more))


def sudden_burst(trace: Trace, capacity_per_s: float, seconds: float) -> Iterator[Run]:
    """At half of what can be done, and for one second a multiple of that."""
    steady_per_s = 0.5 * capacity_per_s
    steady = at_rate(trace, steady_per_s, seconds)
    more = burst(steady, BURST_AT_S, round(BURST_TIMES * steady_per_s))
    yield Run("burst", 0.5, steady.and_also(more))
