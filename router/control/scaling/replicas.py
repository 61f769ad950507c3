"""How many replicas a model should have, from what is asked for, what waits, what is at risk and the lead.

A replica that is begun now serves only after its start, so what counts is the work that will be asked for by
then, and a margin that plans of late have needed. Bursts may last longer than a start or not, and nobody
knows beforehand: one course follows what rises, another stays at the height of the last hour. Each has
the margin with which it is enough, and the one that is followed is the one that takes fewer replicas.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import TYPE_CHECKING

from router.control.scaling.courses import Course, Highest
from router.control.scaling.demand import DemandForecast

if TYPE_CHECKING:
    from router.admission.signals import Load

# Pressed: so much of the best tier is at risk, or so much of its objective is queue, for so long.
_RISK, _DRAIN_PART, _PRESSED_S = 0.05, 0.5, 15.0
# How busy replicas are planned to be moves by the risk that comes of it, until there is any in so much of the
# time; by so much a second. Risk is of the requests of about 30 s, and so is what was asked for: only where
# replicas were no busier than planned for all of that time, their use is to blame, and not the forecast.
_ANY_RISK, _RISKY_PART, _USE_PER_S, _BLAMED_S = 0.002, 0.005, 0.002, 60.0
_LEAST_USE, _MOST_USE = 0.4, 0.85
# Courses are compared by the mean of what they would have had, which fades so fast.
_COMPARED_S = 7200.0


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """`start_s`: from the wish for a replica until it serves. `planned_use`: how busy one is planned to be.

    `coverage` is the share of the time in which what was planned is to be enough: (cost of a miss) / (cost of
    a miss + cost of a replica too many). `spare` replicas are for what may be lost.
    """

    start_s: float = 120.0
    planned_use: float = 0.7
    coverage: float = 0.998
    keep_s: float = 300.0
    spare: int = 0


class ReplicaScaling:
    """Told the load every few seconds, it answers how many replicas there should be; never less than one."""

    def __init__(self, settings: ScalingSettings | None = None) -> None:
        self._settings = settings = settings or ScalingSettings()
        self._forecast = DemandForecast()
        self._following = Course(settings.coverage, settings.start_s, settings.keep_s)
        self._staying = Course(settings.coverage, settings.start_s, settings.keep_s)
        self._dearer = 0.0  # by how many replicas following is, on average
        self._use = settings.planned_use
        self._most_use: Highest[float] = Highest(_BLAMED_S)
        self._pressed_since_s: float | None = None
        self._told_s: float | None = None

    def wanted(self, load: Load, now_s: float) -> int:
        passed_s = 0.0 if self._told_s is None else min(now_s - self._told_s, _PRESSED_S)
        self._told_s = now_s
        here = max(load.replicas, 1)
        self._learn_use(load, here, passed_s, now_s)
        self._forecast.observe(load.offered, now_s)
        least = load.offered / (load.unit * _MOST_USE)  # for what is asked for at this moment, margin or none
        if self._is_pressed(load, now_s):
            backlog = max(load.drain_s - load.objective_s, 0.0) * here / self._settings.start_s
            least = max(least, load.offered / (load.unit * self._use) + backlog)
        return self._cheaper(load, least, passed_s, now_s) + self._settings.spare

    def _cheaper(self, load: Load, least: float, passed_s: float, now_s: float) -> int:
        demand, work_of_one = load.offered, load.unit * self._use
        ahead = self._forecast.foresee(demand, self._settings.start_s, now_s)
        following = self._following.replicas(demand, ahead, least, work_of_one, now_s)
        highest = self._forecast.highest()
        if highest is None:
            return following
        staying = self._staying.replicas(demand, highest, least, work_of_one, now_s)
        self._dearer += (following - staying - self._dearer) * min(passed_s / _COMPARED_S, 1.0)
        return staying if self._dearer > 0 else following

    def _is_pressed(self, load: Load, now_s: float) -> bool:
        is_so = load.risk > _RISK or load.drain_s > _DRAIN_PART * load.objective_s
        if not is_so:
            self._pressed_since_s = None
        elif self._pressed_since_s is None:
            self._pressed_since_s = now_s
        return self._pressed_since_s is not None and now_s - self._pressed_since_s >= _PRESSED_S

    def _learn_use(self, load: Load, here: int, passed_s: float, now_s: float) -> None:
        """Risk although there are as many as planned: plan for less; hardly any risk: for more."""
        use = load.offered / (load.unit * here)
        most_use = self._most_use.after(use, now_s)
        move = 0.0
        if load.risk > _ANY_RISK and most_use <= self._use:
            move = _RISKY_PART - 1.0
        elif load.risk <= _ANY_RISK and use > 0.5 * self._use:
            move = _RISKY_PART
        most = max(_MOST_USE, self._settings.planned_use)
        self._use = min(max(self._use * exp(_USE_PER_S * passed_s * move), _LEAST_USE), most)
