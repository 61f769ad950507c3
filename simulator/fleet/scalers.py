"""Who decides how many replicas a cell has: the router's own decision, and what it is held against."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Protocol

from router.admission.signals import Load
from router.control.scaling.replicas import ReplicaScaling, ScalingSettings


@dataclass(frozen=True)
class Observed:
    """What there is to see of a cell; `unit` is the work that a replica does in a second."""

    replicas: int
    waiting: int
    running: int
    offered: float
    risk: float
    drain_s: float
    objective_s: float
    unit: float


class Scaler(Protocol):
    def wanted(self, seen: Observed, now_s: float) -> int:
        """How many replicas there should be, those that start included."""


@dataclass(frozen=True)
class Fixed:
    replicas: int

    def wanted(self, seen: Observed, now_s: float) -> int:
        return self.replicas


class Wanted:
    """`inflight_wanted_replicas`."""

    def __init__(self, settings: ScalingSettings) -> None:
        self._scaling = ReplicaScaling(settings)

    def wanted(self, seen: Observed, now_s: float) -> int:
        load = Load(seen.replicas, seen.drain_s, seen.risk, seen.objective_s, seen.offered, seen.unit)
        return self._scaling.wanted(load, now_s)


class QueueLength:
    """Kubernetes' HorizontalPodAutoscaler on requests that run and wait, for each replica.

    As its documentation has it: the ratio to the target, a tolerance of a tenth, every 15 s, at most twice as
    many (or four more) within 15 s, and for fewer the highest of the last five minutes.
    """

    def __init__(self, target: float) -> None:
        self._target = target
        self._looked_s = float("-inf")
        self._answer = 1
        self._wishes: list[tuple[float, int]] = []

    def wanted(self, seen: Observed, now_s: float) -> int:
        if now_s - self._looked_s < 15.0:
            return self._answer
        self._looked_s = now_s
        here = max(seen.replicas, 1)
        ratio = (seen.running + seen.waiting) / here / self._target
        wish = here if abs(ratio - 1) <= 0.1 else ceil(ratio * here)
        wish = max(1, min(wish, max(2 * here, here + 4)))
        self._wishes = [(at_s, each) for at_s, each in self._wishes if at_s > now_s - 300.0]
        self._wishes.append((now_s, wish))
        self._answer = wish if wish >= here else min(here, max(each for _, each in self._wishes))
        return self._answer


@dataclass(frozen=True)
class Foreknown:
    """Knows the rates to come: as many as the busiest moment of the next start and of a minute needs."""

    rates: tuple[float, ...]
    period_s: float
    work_of_request: float
    start_s: float
    use: float = 0.85

    def wanted(self, seen: Observed, now_s: float) -> int:
        first = int(now_s / self.period_s)
        last = first + ceil((self.start_s + 60.0) / self.period_s) + 1
        most = max(self.rates[first:last], default=0.0)
        return max(1, ceil(most * self.work_of_request / (seen.unit * self.use)))
