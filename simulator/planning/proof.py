"""A plan played by the fleet simulator: its peak, and its peak with what may be lost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from python_backend.wire.tiers import Tier
from simulator.fleet.cell import PERIOD_S
from simulator.fleet.failures import Failure, Kind
from simulator.fleet.fleet import CELL_REPLICAS, FleetPlan, FleetPlayed, play_fleet
from simulator.fleet.releases import Release
from simulator.fleet.state import Array, sample
from simulator.planning.wish import GPUS_OF_HOST, Survives

if TYPE_CHECKING:
    from loadtest.traces import Trace
    from simulator.planning.search import Plan

_LASTING_S, _LOST_S, _BACK_S = 360.0, 120.0, 120.0
# A release begins anew an eighth of the replicas at a time, or one; more than an hour of it is not played.
_RELEASE_S, _BEGIN_S, _ROUNDS = 3600.0, 60.0, 8
_TIERS = {tier.label: int(tier) for tier in Tier}


@dataclass(frozen=True)
class Proof:
    """`kept` and `kept_after` are the worst tier's share, before and from the loss on.

    `recovered_s` is how long after the loss all tiers keep their objectives again; None if never.
    """

    played: FleetPlayed
    lost: str
    kept: float
    kept_after: float
    recovered_s: float | None


def lengths_of(trace: Trace) -> Array:
    tenants = {name: number for number, name in enumerate(trace.tenants)}
    return sample(
        np.array([each.prompt_tokens for each in trace.requests]),
        np.array([each.output_tokens for each in trace.requests]),
        np.array([_TIERS.get(each.tier or "", int(Tier.STANDARD)) for each in trace.requests]),
        np.array([tenants[each.tenant] for each in trace.requests]),
        np.array([each.at_s for each in trace.requests]),
    )


def prove(plan: Plan, processes: int = 1) -> Proof:
    wish = plan.wish
    kind = Kind(wish.survives.value) if wish.survives is not Survives.NOTHING else None
    if kind is Kind.ZONE and wish.zones < 2:
        kind = Kind.HOST
    lost = () if kind is None else (Failure(kind, _LOST_S, _BACK_S),)
    played = play_fleet(replace(_at_peak(plan, _LASTING_S), failures=lost), processes)
    return _judged(played, "nothing" if kind is None else f"a {kind.value}", wish.goal)


def prove_release(plan: Plan) -> tuple[float, float]:
    """What the worst tier keeps while replicas are begun anew in turn at the peak, and how long that takes.

    Of one cell: the others do the same.
    """
    fleet = _at_peak(plan, _RELEASE_S)
    share = min(CELL_REPLICAS / fleet.replicas, 1.0)
    replicas = round(share * fleet.replicas)
    release = Release(_BEGIN_S, max(replicas // _ROUNDS, 1))
    rates = [share * rate for rate in fleet.rates]
    played = play_fleet(replace(fleet, rates=rates, replicas=replicas, zones=1, release=release))
    first = int(_BEGIN_S / PERIOD_S)
    last = int(min(played.released_s, _RELEASE_S) / PERIOD_S)
    missed, offered = (each[first:last].sum(axis=0) for each in _missed(played))
    return float((1 - missed / offered).min()), played.released_s - _BEGIN_S


def _at_peak(plan: Plan, lasting_s: float) -> FleetPlan:
    wish, best = plan.wish, plan.best
    profile = best.profile
    return FleetPlan(
        profile.shape(),
        wish.objectives,
        lengths_of(wish.traffic.trace),
        [wish.traffic.peak_per_s] * int(lasting_s / PERIOD_S),
        best.replicas,
        zones=min(wish.zones, best.replicas),
        start_s=profile.start_s(wish.fixed_start_s, wish.load_gb_per_s),
        hosts=max(GPUS_OF_HOST // profile.tensor_parallel, 1),
        retries=2,
        seed=wish.seed,
    )


def _missed(played: FleetPlayed) -> tuple[Array, Array]:
    """By period and tier, beside what was offered."""
    counts = [played.periods[name] for name in ("refused", "failed", "late", "slow")]
    missed: Array = np.sum(counts, axis=0)
    return missed, np.maximum(played.periods["offered"], 1)


def _judged(played: FleetPlayed, lost: str, goal: float) -> Proof:
    """By who arrived and was not answered well: answers end after their period, so sums run over windows."""
    at = int(_LOST_S / PERIOD_S)
    missed, offered = _missed(played)
    before = 1 - missed[:at].sum(axis=0) / offered[:at].sum(axis=0)
    after = 1 - missed[at:].sum(axis=0) / offered[at:].sum(axis=0)
    bad = ((1 - missed / offered) < goal).any(axis=1)
    last = int(np.flatnonzero(bad[at:]).max()) + 1 if bad[at:].any() else 0
    is_over = at + last < len(bad)
    return Proof(played, lost, float(before.min()), float(after.min()), last * PERIOD_S if is_over else None)
