"""Plays one cell over its time: rates, failures, replicas that start and stop; only steps are compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from python_backend.sharing.asks import LIGHT_WEIGHT, light_bounds
from python_backend.wire.tiers import Tier
from router.admission.judge import DispatchSettings
from router.core.objective import PATIENCE_S
from simulator.fleet import failures
from simulator.fleet.failures import Failure, Kind
from simulator.fleet.forecasts import price_s
from simulator.fleet.play import advance
from simulator.fleet.releases import Release, RollingRelease
from simulator.fleet.scalers import Observed, Scaler
from simulator.fleet.state import (
    ASKED,
    CLOSED,
    COUNTED_FROM,
    DRAINING,
    ENDS_PER_S,
    ENDS_S,
    IS_TRACED,
    LATE,
    OPEN,
    RETRIES,
    STARTING,
    TIERS,
    WAITING,
    Array,
    ReplicaShape,
    Shape,
    new_cell,
)
from simulator.uneven_cost import UnevenStepCost

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router.core.objective import Objective

PERIOD_S = 5.0
_REDIS_S = 0.25


@dataclass(frozen=True)
class CellPlan:
    """`rates` are requests a second, by period. `hosts` replicas are lost with a host."""

    shape: ReplicaShape
    objectives: Mapping[Tier, Objective]
    lengths: Array
    rates: Sequence[float]
    replicas: int
    most: int
    seed: int
    routers: int = 2
    start_s: float = 120.0
    hosts: int = 8
    retries: int = 0
    overhead_s: float = 0.015
    is_traced: bool = False
    counted_from_s: float = 0.0
    failures: tuple[Failure, ...] = ()
    release: Release | None = None
    unit: float = 1.0
    scaler: Scaler | None = None


@dataclass
class CellPlayed:
    """Counts by period and tier, histograms of times; `replicas` is how many were paid for, by period.

    `released_s` is when a release was over.
    """

    periods: Array
    tenants: Array
    times: Array
    replicas: list[int] = field(default_factory=list)
    open: list[int] = field(default_factory=list)
    busy_s: float = 0.0
    released_s: float = inf


def compiled_shape(plan: CellPlan) -> Shape:
    cost, given = plan.shape.cost, plan.objectives
    first_s = [given[tier].patience_s if tier in given else PATIENCE_S[tier] for tier in Tier]
    between_s = [
        inf if tier not in given or given[tier].inter_token_s is None else given[tier].inter_token_s
        for tier in Tier
    ]
    return Shape(
        cost.base_ms / 1e3,
        cost.prefill_token_ms / 1e3,
        cost.decode_sequence_ms / 1e3,
        cost.kv_kilotoken_ms / 1e6,
        plan.shape.slots,
        plan.shape.step_tokens,
        plan.shape.kv_tokens,
        plan.overhead_s,
        np.array(first_s, float),
        np.array(between_s, float),
        np.array([DispatchSettings().tier_weights[tier] for tier in Tier], float),
        plan.retries,
        _REDIS_S,
        plan.shape.is_prefilled,
        plan.shape.depth,
        np.array(cost.tokens_ms if isinstance(cost, UnevenStepCost) else (), float) / 1e3,
        float(plan.shape.even_context or inf),
        np.array(plan.shape.slowness.times, float),
        plan.shape.slowness.every_s,
        plan.shape.slowness.from_s,
    )


def weights_of(plan: CellPlan, shape: Shape) -> Array:
    """By tier and tenant: who asks for little has more for it, as routers tell engines."""
    lengths, price = plan.lengths, getattr(price_s, "py_func", price_s)  # of all at once
    tenants = int(lengths["tenant"].max()) + 1
    lanes = lengths["tier"] * tenants + lengths["tenant"]
    work_s = price(shape, lengths["prompt"], lengths["output"])
    asked_s: Array = np.bincount(lanes, work_s, TIERS * tenants).reshape(TIERS, tenants)
    asked_s *= max(plan.rates, default=0.0) / len(lengths) / max(plan.replicas, 1)
    rates = {(tier, str(tenant)): float(rate) for (tier, tenant), rate in np.ndenumerate(asked_s)}
    bounds: Array = np.array(light_bounds(rates, dict.fromkeys(rates, 1.0)))
    return np.where(asked_s <= bounds[:, None], LIGHT_WEIGHT, 1.0)


def play_cell(plan: CellPlan) -> CellPlayed:
    return _Play(plan).run()


class _Play:
    def __init__(self, plan: CellPlan) -> None:
        self._plan = plan
        self._shape = compiled_shape(plan)
        most = max(plan.most, plan.replicas)
        self._cell = new_cell(
            self._shape, plan.lengths, plan.replicas, most, plan.routers, len(plan.rates), plan.seed
        )
        self._cell.engines.tenants["weight"] = weights_of(plan, self._shape)
        self._cell.clock[IS_TRACED], self._cell.clock[COUNTED_FROM] = plan.is_traced, plan.counted_from_s
        self._wanted = plan.replicas
        self._due: list[tuple[float, int, str, object]] = []  # what happens at which time, in order
        self._order = 0
        self._rolling = RollingRelease(plan.release)
        for failure in plan.failures:
            self._at(failure.at_s, "fails", failure)
        stats = self._cell.stats
        self._played = CellPlayed(stats.periods, stats.tenants, stats.times)

    def run(self) -> CellPlayed:
        for period, rate in enumerate(self._plan.rates):
            until_s = (period + 1) * PERIOD_S
            while self._due and self._due[0][0] <= until_s:
                at_s, _, what, about = heappop(self._due)
                advance(self._cell, self._shape, float(at_s), float(rate), period)
                self._happen(what, about, at_s, period)
            advance(self._cell, self._shape, float(until_s), float(rate), period)
            self._scale(until_s, period)
            for row in self._rolling.look(self._cell.engines.replicas, until_s):
                self._at(until_s + self._plan.start_s, "has started", row)
            phases = self._cell.engines.replicas["phase"]
            self._played.open.append(int((phases == OPEN).sum()))
            self._played.replicas.append(int(np.isin(phases, (OPEN, STARTING, DRAINING)).sum()))
        self._played.busy_s = float(self._cell.engines.replicas["busy_s"].sum())
        self._played.released_s = self._rolling.done_s
        return self._played

    def _at(self, at_s: float, what: str, about: object) -> None:
        self._order += 1
        heappush(self._due, (at_s, self._order, what, about))

    def _happen(self, what: str, about: object, at_s: float, period: int) -> None:
        if what == "fails":
            assert isinstance(about, Failure)
            plan = self._plan
            rows = failures.begin(self._cell, about, plan.hosts, at_s, period)
            if about.kind is Kind.ZONE:
                self._turn_away()
            if about.lasting_s < inf:
                self._at(at_s + about.lasting_s, "is back", (about, rows))
        elif what == "is back":
            assert isinstance(about, tuple)
            failures.end(self._cell, about[0])
            self._shape = compiled_shape(self._plan)
            failures.revive(self._cell, about[1])
            self._open_or_close(at_s)
        else:
            assert isinstance(about, int)
            replica = self._cell.engines.replicas[about]
            if replica.phase == STARTING:
                replica.phase = OPEN

    def _turn_away(self) -> None:
        """Clients of a lost zone try again elsewhere, which is in the rates of the others."""
        self._shape = self._shape._replace(retries=0)
        self._cell.queue.counts[RETRIES] = 0
        self._cell.queue.entries["at_s"] = -inf  # who waits is refused at the next look

    def _observed(self, period: int) -> Observed:
        cell, unit = self._cell, self._plan.unit
        replicas = cell.engines.replicas
        recent = cell.stats.periods["work_s"][max(period - 5, 0) : period + 1]
        offered = float(recent.sum()) / (PERIOD_S * len(recent))
        asked = max(float(cell.clock[ASKED]), 1.0)
        waiting, running = int(cell.queue.counts[WAITING]), int(replicas["decoding"].sum())
        ends_per_s = max(float(cell.clock[ENDS_PER_S]) / ENDS_S, 0.1)
        there = int(np.isin(replicas["phase"], (OPEN, STARTING)).sum())
        first_s = float(min(self._shape.first_token_s))
        risk = float(cell.clock[LATE]) / asked
        return Observed(there, waiting, running, offered, risk, waiting / ends_per_s, first_s, unit)

    def _scale(self, now_s: float, period: int) -> None:
        if self._plan.scaler is None:
            return
        wanted = self._plan.scaler.wanted(self._observed(period), now_s)
        self._wanted = min(max(wanted, 1), self._plan.most)
        self._open_or_close(now_s)

    def _open_or_close(self, now_s: float) -> None:
        """Those that are wanted start; of those too many, the ones that do least take no more requests."""
        phases = self._cell.engines.replicas["phase"]
        there = int(np.isin(phases, (OPEN, STARTING)).sum())
        for row in self._at_hand(phases == DRAINING)[: max(self._wanted - there, 0)]:
            phases[row] = OPEN
            there += 1
        for row in self._at_hand(phases == CLOSED)[: max(self._wanted - there, 0)]:
            phases[row] = STARTING
            self._at(now_s + self._plan.start_s, "has started", int(row))
        taken = self._cell.engines.replicas["taken"]
        rows = np.array(self._at_hand((phases == OPEN) | (phases == STARTING)), int)
        order = rows[np.lexsort((taken[rows], phases[rows]))]
        for row in order[: max(there - self._wanted, 0)]:
            phases[row] = DRAINING if taken[row] else CLOSED

    def _at_hand(self, are: Array) -> list[int]:
        """Those that a release does not have."""
        return [int(row) for row in np.flatnonzero(are) if row not in self._rolling.under_way]
