"""A fleet: cells in zones, balancers before them, several processes; the same for the same seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from math import ceil, inf
from multiprocessing import get_context
from typing import TYPE_CHECKING

import numpy as np

from python_backend.wire.tiers import Tier
from simulator.fleet.cell import PERIOD_S, CellPlan, CellPlayed, play_cell
from simulator.fleet.failures import Failure, Kind
from simulator.fleet.state import BIN_FACTOR, BINS, FIRST_BIN_S, Array

if TYPE_CHECKING:
    from router.core.objective import Objective
    from simulator.fleet.releases import Release
    from simulator.fleet.scalers import Scaler
    from simulator.fleet.state import ReplicaShape

# Balancers send nothing more to a zone that has not answered for so long; clients try again after a second.
BALANCER_S, CLIENT_RETRY_S = 5.0, 1.0
# One deployment of routers and replicas; a fleet has as many of them as it needs.
CELL_REPLICAS = 64


@dataclass(frozen=True)
class FleetPlan:
    """`rates` are requests a second of the whole fleet, by period of `PERIOD_S`.

    Where `is_traced`, requests come each at its own time and not by chance; there is one cell then, and rates
    tell how long it is played. Figures are of what arrives from `counted_from_s` on.
    """

    shape: ReplicaShape
    objectives: Mapping[Tier, Objective]
    lengths: Array
    rates: Sequence[float]
    replicas: int
    zones: int = 1
    routers: int = 2  # of each cell
    start_s: float = 120.0
    hosts: int = 8
    retries: int = 0
    overhead_s: float = 0.015
    is_traced: bool = False
    counted_from_s: float = 0.0
    failures: tuple[Failure, ...] = ()
    release: Release | None = None
    seed: int = 0
    unit: float = 1.0
    most: int | None = None
    cell_replicas: int = CELL_REPLICAS


@dataclass(frozen=True)
class FleetPlayed:
    """Counts by period and tier over all cells; `replicas` is how many were paid for, by period."""

    periods: Array
    tenants: Array
    times: Array
    replicas: tuple[int, ...]
    open: tuple[int, ...]
    busy_share: float
    released_s: float = inf  # when a release was over, if one was

    def share(self, name: str, tier: Tier | None = None) -> float:
        """Of all that were offered: `good`, `refused`, `failed`, `late` or `slow`."""
        counted = self.periods if tier is None else self.periods[:, tier]
        return float(counted[name].sum() / max(counted["offered"].sum(), 1))

    def percentile(self, times: int, tier: Tier, share: float) -> float | None:
        """Of first tokens (0) or of the time between tokens (1), by a histogram with bins of 4 %."""
        counts = self.times[times, tier]
        if not counts.sum():
            return None
        number = int(np.searchsorted(np.cumsum(counts), share * counts.sum()))
        return float(FIRST_BIN_S * BIN_FACTOR ** (min(number, BINS - 1) - 0.5))

    @property
    def replica_hours(self) -> float:
        return sum(self.replicas) * PERIOD_S / 3600


def play_fleet(plan: FleetPlan, processes: int = 1, scalers: Sequence[Scaler] = ()) -> FleetPlayed:
    """`scalers` are one for each cell, none for replicas that stay as they are."""
    cells = cell_plans(plan, scalers)
    if processes <= 1 or len(cells) == 1:
        return _merged([play_cell(each) for each in cells], plan)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return _merged(list(pool.map(play_cell, cells)), plan)


def cell_count(plan: FleetPlan) -> int:
    most = max(plan.most or 0, plan.replicas)
    return plan.zones * max(ceil(most / plan.zones / plan.cell_replicas), 1)


def cell_plans(plan: FleetPlan, scalers: Sequence[Scaler] = ()) -> list[CellPlan]:
    """Replicas and requests are spread evenly; a zone that is lost leaves its requests to the others."""
    count = cell_count(plan)
    if plan.is_traced and count > 1:
        raise ValueError(f"traced requests need a fleet of one cell, and there are {count}")
    weights = zone_rates(plan.zones, plan.failures, plan.rates, plan.start_s)
    most = max(plan.most or 0, plan.replicas)
    per_zone = count // plan.zones
    return [
        CellPlan(
            plan.shape,
            plan.objectives,
            plan.lengths,
            [float(rate) / per_zone for rate in weights[number % plan.zones]],
            _part(plan.replicas, count, number),
            _part(most, count, number),
            seed=plan.seed * 100_003 + number,
            routers=plan.routers,
            start_s=plan.start_s,
            hosts=plan.hosts,
            retries=plan.retries,
            overhead_s=plan.overhead_s,
            is_traced=plan.is_traced,
            counted_from_s=plan.counted_from_s,
            failures=tuple(
                replace(each, at_s=float(each.at_s))
                for each in plan.failures
                if each.zone == number % plan.zones and (each.kind is Kind.ZONE or number < plan.zones)
            ),
            release=plan.release,
            unit=plan.unit,
            scaler=scalers[number] if scalers else None,
        )
        for number in range(count)
    ]


def _part(whole: int, parts: int, number: int) -> int:
    return whole // parts + (number < whole % parts)


def zone_rates(zones: int, lost: Sequence[Failure], rates: Sequence[float], start_s: float) -> Array:
    """By zone and period. What was sent to a lost zone before balancers noticed comes to the others later."""
    periods = len(rates)
    shares = np.full((zones, periods), 1.0 / zones)
    late = np.zeros(periods)
    for failure in lost:
        if failure.kind is not Kind.ZONE:
            continue
        first = int(failure.at_s / PERIOD_S)
        noticed = min(first + ceil((BALANCER_S + CLIENT_RETRY_S) / PERIOD_S), periods)
        back = min(int(min((failure.at_s + failure.lasting_s + start_s) / PERIOD_S, periods)) + 1, periods)
        late[noticed : noticed + 1] += sum(rates[first:noticed]) / zones
        shares[failure.zone, first:back] = 0.0
        shares[failure.zone, first:noticed] = 1.0 / zones
    up = shares.sum(axis=0)
    given = np.asarray(rates) / np.where(up > 0, up, 1.0)
    found: Array = shares * (given + np.where(up > 0, late / np.where(up > 0, up, 1.0), 0.0))
    return found


def _merged(cells: Sequence[CellPlayed], plan: FleetPlan) -> FleetPlayed:
    periods, tenants = cells[0].periods.copy(), cells[0].tenants.copy()
    for other in cells[1:]:
        for name in periods.dtype.names or ():
            periods[name] += other.periods[name]
        for name in tenants.dtype.names or ():
            tenants[name] += other.tenants[name]
    open_ones = [sum(each) for each in zip(*(cell.open for cell in cells), strict=True)]
    served_s = max(sum(open_ones) * PERIOD_S, 1e-9)
    return FleetPlayed(
        periods,
        tenants,
        np.sum([each.times for each in cells], axis=0),
        tuple(sum(each) for each in zip(*(cell.replicas for cell in cells), strict=True)),
        tuple(open_ones),
        sum(each.busy_s for each in cells) / served_s,
        max(each.released_s for each in cells),
    )
