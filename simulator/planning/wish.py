"""What a plan is made for: traffic, objectives, kinds of GPUs with their prices, and what may be lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from python_backend.wire.tiers import Tier

if TYPE_CHECKING:
    from loadtest.traces import Trace
    from router.core.objective import Objective

# Dollars an hour for one GPU, an example: give your own.
EXAMPLE_PRICES = {"h200": 3.8, "h100": 2.9, "a100": 1.6, "l40s": 1.0, "b200": 5.5}
GPUS_OF_HOST = 8


class Survives(str, Enum):
    """What may be lost at the peak without an objective being missed for long."""

    NOTHING = "nothing"
    REPLICA = "replica"
    HOST = "host"
    ZONE = "zone"


@dataclass(frozen=True)
class Traffic:
    """The lengths, tiers and tenants of a trace, at `peak_per_s`; `hours` are parts of it over a day."""

    trace: Trace
    peak_per_s: float
    hours: tuple[float, ...] = (1.0,)

    @property
    def mean_per_s(self) -> float:
        return self.peak_per_s * sum(self.hours) / len(self.hours)

    @property
    def prompt_tokens(self) -> float:
        return sum(each.prompt_tokens for each in self.trace.requests) / len(self.trace.requests)

    @property
    def output_tokens(self) -> float:
        return sum(each.output_tokens for each in self.trace.requests) / len(self.trace.requests)


@dataclass(frozen=True)
class Wish:
    """For one model. `goal` is the share of each tier's requests that keeps its objective."""

    model: str
    traffic: Traffic
    objectives: Mapping[Tier, Objective]
    prices: Mapping[str, float] = field(default_factory=lambda: EXAMPLE_PRICES)
    precisions: tuple[str, ...] = ()
    zones: int = 3
    survives: Survives = Survives.ZONE
    goal: float = 0.95
    fixed_start_s: float = 60.0
    load_gb_per_s: float = 1.0
    seed: int = 0


def day(low: float) -> tuple[float, ...]:
    """24 hours from the quietest at 3 to the busiest at 15, `low` of it at night."""
    from math import cos, pi

    return tuple(low + (1 - low) * (1 - cos(2 * pi * (hour - 3) / 24)) / 2 for hour in range(24))
