"""A plan played by the fleet simulator: its peak, and its peak with what may be lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from python_backend.wire.tiers import Tier
from simulator.fleet.cell import PERIOD_S
from simulator.fleet.failures import Failure, Kind
from simulator.fleet.fleet import FleetPlan, FleetPlayed, play_fleet
from simulator.fleet.state import Array, sample
from simulator.planning.wish import GPUS_OF_HOST, Survives

if TYPE_CHECKING:
    from loadtest.traces import Trace
    from simulator.planning.search import Plan

_LASTING_S, _LOST_S, _BACK_S = 360.0, 120.0, 120.0
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
    )


def prove(plan: Plan, processes: int = 1) -> Proof:
    wish, best = plan.wish, plan.best
    kind = Kind(wish.survives.value) if wish.survives is not Survives.NOTHING else None
    if kind is Kind.ZONE and wish.zones < 2:
        kind = Kind.HOST
    lost = () if kind is None else (Failure(kind, _LOST_S, _BACK_S),)
    profile = best.profile
    fleet = FleetPlan(
        profile.shape(),
        wish.objectives,
        lengths_of(wish.traffic.trace),
        [wish.traffic.peak_per_s] * int(_LASTING_S / PERIOD_S),
        best.replicas,
        zones=min(wish.zones, best.replicas),
        start_s=profile.start_s(wish.fixed_start_s, wish.load_gb_per_s),
        hosts=max(GPUS_OF_HOST // profile.tensor_parallel, 1),
        retries=2,
        failures=lost,
        seed=wish.seed,
    )
    played = play_fleet(fleet, processes)
    return _judged(played, "nothing" if kind is None else f"a {kind.value}", wish.goal)


def _judged(played: FleetPlayed, lost: str, goal: float) -> Proof:
    """By who arrived and was not answered well: answers end after their period, so sums run over windows."""
    at = int(_LOST_S / PERIOD_S)
    counts = [played.periods[name] for name in ("refused", "failed", "late", "slow")]
    missed: Array = np.sum(counts, axis=0)
    offered = np.maximum(played.periods["offered"], 1)
    before = 1 - missed[:at].sum(axis=0) / offered[:at].sum(axis=0)
    after = 1 - missed[at:].sum(axis=0) / offered[at:].sum(axis=0)
    bad = ((1 - missed / offered) < goal).any(axis=1)
    last = int(np.flatnonzero(bad[at:]).max()) + 1 if bad[at:].any() else 0
    is_over = at + last < len(bad)
    return Proof(played, lost, float(before.min()), float(after.min()), last * PERIOD_S if is_over else None)
