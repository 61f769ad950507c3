"""What a simulation, or a real run that was written down the same way, comes to in figures."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from loadtest.percentiles import percentile
from python_backend.wire.tiers import Tier
from router.admission.demand import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from router.core.objective import Objective
    from simulator.gaps import Gaps
    from simulator.request import SimulatedRequest
    from simulator.scenario import Scenario
    from simulator.simulation import Simulated


@dataclass(frozen=True, slots=True)
class TierFigures:
    """Times are of those that were served. `work_share` is its part of all engine time that was spent."""

    tier: str
    offered: int
    good: int
    refused: int
    too_late: int
    first_token_p50_s: float | None
    first_token_p95_s: float | None
    inter_token_p50_s: float | None
    inter_token_p95_s: float | None
    work_share: float

    @property
    def good_share(self) -> float:
        return self.good / self.offered if self.offered else 0.0


@dataclass(frozen=True, slots=True)
class TenantFigures:
    """`of_fair_share`: the engine time it had, of what would have been fair within its tiers."""

    tenant: str
    offered: int
    good: int
    work_share: float
    of_fair_share: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Goodput is requests that kept their objectives, for each second of arrivals.

    `covered_share` is how many of those served had their first token within the 90 % forecast; None where
    nothing was predicted. `fairness` is Jain's index over the tenants' shares of what would be fair: 1 when
    all are equal.
    """

    admission: str
    rate: float
    offered: int
    offered_s: float
    ended_s: float
    good: int
    goodput_per_s: float
    tokens_per_s: float
    refused: int
    covered_share: float | None
    fairness: float
    busy_share: float
    mean_batch: float
    preemptions: int
    drain_peak_s: float | None
    tiers: tuple[TierFigures, ...]
    tenants: tuple[TenantFigures, ...]

    def tier(self, tier: Tier) -> TierFigures:
        return next(each for each in self.tiers if each.tier == tier.label)

    def tenant(self, name: str) -> TenantFigures:
        return next(each for each in self.tenants if each.tenant == name)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def figures_of(simulated: Simulated, scenario: Scenario, rate: float = 1.0) -> Figures:
    requests, offered_s = simulated.requests, simulated.offered_s
    good = [request for request in requests if is_good(request, scenario.objective(request.tier))]
    steps = sum(engine.decoded_steps for engine in simulated.engines)
    mean_batch = sum(engine.decoded_tokens for engine in simulated.engines) / max(steps, 1)
    work = _Work(scenario, max(mean_batch, 1.0))
    span_s = max(offered_s or simulated.ended_s, 1e-9)
    covered = [
        request.first_token_s - request.at_s <= request.forecast_late_s
        for request in requests
        if request.first_token_s is not None and request.forecast_late_s is not None
    ]
    tenants = _tenant_figures(requests, good, work, scenario.weights)
    drains = [moment.drain_s for moment in simulated.moments if moment.drain_s is not None]
    return Figures(
        admission=scenario.admission.value,
        rate=rate,
        offered=len(requests),
        offered_s=offered_s,
        ended_s=simulated.ended_s,
        good=len(good),
        goodput_per_s=len(good) / span_s,
        tokens_per_s=sum(request.generated for request in requests) / max(simulated.ended_s, 1e-9),
        refused=sum(request.refused is not None for request in requests),
        covered_share=sum(covered) / len(covered) if covered else None,
        fairness=_jain([each.of_fair_share for each in tenants]),
        busy_share=sum(engine.busy_s for engine in simulated.engines)
        / max(simulated.ended_s * len(simulated.engines), 1e-9),
        mean_batch=mean_batch,
        preemptions=sum(engine.preemptions for engine in simulated.engines),
        drain_peak_s=max(drains, default=None),
        tiers=_tier_figures(requests, good, work, simulated.gaps),
        tenants=tenants,
    )


def is_good(request: SimulatedRequest, objective: Objective) -> bool:
    """Whole, its first token in time, and its tokens on average as fast as they are to come."""
    if request.ended_s is None or request.first_token_s is None:
        return False
    if request.first_token_s - request.at_s > objective.patience_s:
        return False
    if objective.inter_token_s is None or request.output_tokens < 2:
        return True
    return (request.ended_s - request.first_token_s) / (request.output_tokens - 1) <= objective.inter_token_s


class _Work:
    """Engine time by the formula of the router's prices, with the batch that there really was."""

    def __init__(self, scenario: Scenario, mean_batch: float) -> None:
        cost = scenario.shape.cost
        self._prompt_token_ms = cost.prefill_token_ms
        self._token_ms = cost.base_ms / mean_batch + cost.decode_sequence_ms

    def asked_ms(self, request: SimulatedRequest) -> float:
        return self._prompt_token_ms * request.prompt_tokens + self._token_ms * request.output_tokens

    def done_ms(self, request: SimulatedRequest) -> float:
        return self.asked_ms(request) if request.ended_s is not None else 0.0


def _tier_figures(
    requests: Sequence[SimulatedRequest], good: Sequence[SimulatedRequest], work: _Work, gaps: Gaps
) -> tuple[TierFigures, ...]:
    total_ms = sum(map(work.done_ms, requests)) or 1.0
    figures = []
    for tier in Tier:
        mine = [request for request in requests if request.tier is tier]
        if not mine:
            continue
        first_s = sorted(
            request.first_token_s - request.at_s for request in mine if request.first_token_s is not None
        )
        figures.append(
            TierFigures(
                tier=tier.label,
                offered=len(mine),
                good=sum(request.tier is tier for request in good),
                refused=sum(request.refused is not None for request in mine),
                too_late=sum(request.refused is Reason.TOO_LATE for request in mine),
                first_token_p50_s=percentile(first_s, 0.5) if first_s else None,
                first_token_p95_s=percentile(first_s, 0.95) if first_s else None,
                inter_token_p50_s=gaps.percentile_s(tier, 0.5),
                inter_token_p95_s=gaps.percentile_s(tier, 0.95),
                work_share=sum(map(work.done_ms, mine)) / total_ms,
            )
        )
    return tuple(figures)


def _tenant_figures(
    requests: Sequence[SimulatedRequest],
    good: Sequence[SimulatedRequest],
    work: _Work,
    weights: Mapping[str, float],
) -> tuple[TenantFigures, ...]:
    offered: dict[str, int] = defaultdict(int)
    kept: dict[str, int] = defaultdict(int)
    asked_ms: dict[Tier, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    done_ms: dict[str, float] = defaultdict(float)
    tier_ms: dict[Tier, float] = defaultdict(float)
    for request in requests:
        offered[request.tenant] += 1
        asked_ms[request.tier][request.tenant] += work.asked_ms(request)
        done_ms[request.tenant] += work.done_ms(request)
        tier_ms[request.tier] += work.done_ms(request)
    for request in good:
        kept[request.tenant] += 1
    fair_ms: dict[str, float] = defaultdict(float)
    for tier, asked in asked_ms.items():
        for tenant, share_ms in fair_shares(asked, tier_ms[tier], weights).items():
            fair_ms[tenant] += share_ms
    total_ms = sum(done_ms.values()) or 1.0
    figures = [
        TenantFigures(
            tenant,
            offered[tenant],
            kept[tenant],
            done_ms[tenant] / total_ms,
            done_ms[tenant] / fair_ms[tenant] if fair_ms[tenant] else 1.0,
        )
        for tenant in offered
    ]
    return tuple(sorted(figures, key=lambda each: (-each.work_share, each.tenant)))


def fair_shares(asked: Mapping[str, float], total: float, weights: Mapping[str, float]) -> dict[str, float]:
    """Everybody gets the same for its weight, and nobody more than it asked for."""
    shares: dict[str, float] = {}
    left, weight = total, sum(weights.get(tenant, 1.0) for tenant in asked)
    for tenant in sorted(asked, key=lambda name: asked[name] / weights.get(name, 1.0)):
        mine = weights.get(tenant, 1.0)
        shares[tenant] = min(asked[tenant], left * mine / weight)
        left -= shares[tenant]
        weight = max(weight - mine, 1e-12)
    return shares


def _jain(values: Sequence[float]) -> float:
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0
