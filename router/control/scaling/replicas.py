"""How many replicas a model should have, from what is asked for, what waits, what is at risk and the lead.

A replica that is begun now serves only after its start, so what counts is the work that will be asked for by
then, and a margin that plans of late have needed. More are wanted at once; fewer only when none was
wanted for `keep_s`: to begin one again costs its whole start, and the objectives of those who come meanwhile.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import ceil, exp
from typing import TYPE_CHECKING

from router.control.scaling.demand import DemandForecast, Margin

if TYPE_CHECKING:
    from router.admission.signals import Load

# Pressed: so much of the best tier is at risk, or so much of its objective is queue, for so long.
_RISK, _DRAIN_PART, _PRESSED_S = 0.05, 0.5, 15.0
# How busy replicas are planned to be moves by the risk that comes of it, until there is any in so much of the
# time; by so much a second.
_ANY_RISK, _RISKY_PART, _USE_PER_S = 0.002, 0.02, 0.002
_LEAST_USE, _MOST_USE = 0.4, 0.85


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """`start_s`: from the wish for a replica until it serves. `planned_use`: how busy one is planned to be.

    `coverage` is the share of the time in which what was planned is to be enough: (cost of a miss) / (cost of
    a miss + cost of a replica too many). `spare` replicas are for what may be lost.
    """

    start_s: float = 120.0
    planned_use: float = 0.7
    coverage: float = 0.99
    keep_s: float = 300.0
    spare: int = 0


class ReplicaScaling:
    """Told the load every few seconds, it answers how many replicas there should be; never less than one."""

    def __init__(self, settings: ScalingSettings | None = None) -> None:
        self._settings = settings or ScalingSettings()
        self._forecast = DemandForecast()
        self._margin = Margin(self._settings.coverage)
        self._use = self._settings.planned_use
        self._pressed_since_s: float | None = None
        self._told_s: float | None = None
        self._wishes: deque[tuple[float, int]] = deque()  # falling; the first is the highest of `keep_s`

    def wanted(self, load: Load, now_s: float) -> int:
        here = max(load.replicas, 1)
        is_pressed = self._is_pressed(load, now_s)
        self._learn_use(load, here, now_s)
        self._forecast.observe(load.offered, now_s)
        self._margin.observe(load.offered, now_s)
        ahead = self._forecast.foresee(load.offered, self._settings.start_s, now_s)
        least = load.offered / (load.unit * _MOST_USE)  # for what is asked for at this moment, margin or none
        needed = ceil(max(self._margin.value * ahead / (load.unit * self._use), least) - 1e-9)
        if is_pressed:
            backlog = max(load.drain_s - load.objective_s, 0.0) * here / self._settings.start_s
            needed = max(needed, ceil(load.offered / (load.unit * self._use) + backlog))
        kept = self._kept(max(needed, 1), now_s)
        self._margin.plan(kept * load.unit * self._use, now_s + self._settings.start_s)
        return kept + self._settings.spare

    def _is_pressed(self, load: Load, now_s: float) -> bool:
        is_so = load.risk > _RISK or load.drain_s > _DRAIN_PART * load.objective_s
        if not is_so:
            self._pressed_since_s = None
        elif self._pressed_since_s is None:
            self._pressed_since_s = now_s
        return self._pressed_since_s is not None and now_s - self._pressed_since_s >= _PRESSED_S

    def _learn_use(self, load: Load, here: int, now_s: float) -> None:
        """Risk although there are as many as planned: plan for less; hardly any risk: for more."""
        passed_s = 0.0 if self._told_s is None else min(now_s - self._told_s, _PRESSED_S)
        self._told_s = now_s
        use = load.offered / (load.unit * here)
        move = 0.0
        if load.risk > _ANY_RISK and use <= self._use:
            move = _RISKY_PART - 1.0
        elif load.risk <= _ANY_RISK and use > 0.5 * self._use:
            move = _RISKY_PART
        most = max(_MOST_USE, self._settings.planned_use)
        self._use = min(max(self._use * exp(_USE_PER_S * passed_s * move), _LEAST_USE), most)

    def _kept(self, needed: int, now_s: float) -> int:
        wishes = self._wishes
        while wishes and wishes[-1][1] <= needed:
            wishes.pop()
        wishes.append((now_s, needed))
        while wishes[0][0] < now_s - self._settings.keep_s:
            wishes.popleft()
        return wishes[0][1]
