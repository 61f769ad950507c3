"""What a run was worth: goodput under the objectives, who waited how long, who was refused, who got what."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadtest.percentiles import percentile
from loadtest.results import RequestResult, Slo
from python_backend.wire.tiers import Tier
from router.core.objective import Objective

Objectives = Mapping[str, Objective]
# Engine time of a request with a prompt and an answer of so many tokens.
Work = Callable[[int, int], float]
# As the router puts it to those whose turn did not come in time.
_WAITED_IN_VAIN = "in time"


@dataclass(frozen=True)
class Spread:
    """Of some values; None without any."""

    count: int = 0
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    least: float | None = None
    most: float | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if not values:
            return cls()
        ordered = sorted(values)
        p50, p95, p99 = (percentile(ordered, share) for share in (0.5, 0.95, 0.99))
        return cls(len(ordered), p50, p95, p99, ordered[0], ordered[-1])


@dataclass(frozen=True)
class TierFigures:
    """`good_share` is of what was offered; `service_share` of all the work that was done for anybody.

    The time between the tokens of a request is its mean.
    """

    offered: int
    good_per_s: float
    good_share: float
    first_token_s: Spread
    inter_token_s: Spread
    refused: int
    service_share: float


@dataclass(frozen=True)
class Figures:
    """Of the requests of one run. What failed is neither answered nor refused in order.

    `refusal_s` is how long it took to refuse at once; `refused_late` have waited before, and `left` were
    still waiting when the run was over.
    """

    offered_per_s: float
    good_per_s: float
    tiers: Mapping[str, TierFigures]
    refused: int
    refused_late: int
    refusal_s: Spread
    retry_after_s: Spread
    retry_jitter: float
    left: int
    failed: Mapping[str, int]
    fairness: float
    least_served: float
    tenants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def is_good(result: RequestResult, objectives: Objectives) -> bool:
    objective = objectives[result.tier]
    return Slo(objective.first_token_s, objective.inter_token_s).is_kept_by(result)


def is_refused_late(result: RequestResult) -> bool:
    """It was let wait, and then its time was over."""
    return result.is_refused and _WAITED_IN_VAIN in result.error


def judge(
    outcomes: Sequence[RequestResult],
    objectives: Objectives,
    window_s: tuple[float, float],
    work_ms: Work,
) -> Figures:
    """Rates are of what ended within the window, in which load and queues are as they stay.

    (What was let in before the end and is answered after it would make a short run look better than a long
    one.) Shares and latencies are of what arrived in it.
    """
    begin_s, end_s = window_s
    length_s = end_s - begin_s
    arrived = [each for each in outcomes if begin_s <= each.at_s < end_s]
    ended = [each for each in outcomes if begin_s <= each.at_s + (each.ended_s or 0.0) < end_s]
    good = [each for each in ended if is_good(each, objectives)]
    served = [each for each in ended if each.status == 200 and not each.error]
    all_work_ms = sum(work_ms(each.prompt_tokens, each.asked_tokens) for each in served) or 1.0
    tiers = {}
    for tier in Tier:
        mine = [each for each in arrived if each.tier == tier.label]
        work = sum(
            work_ms(each.prompt_tokens, each.asked_tokens) for each in served if each.tier == tier.label
        )
        tiers[tier.label] = TierFigures(
            offered=len(mine),
            good_per_s=sum(each.tier == tier.label for each in good) / length_s,
            good_share=sum(is_good(each, objectives) for each in mine) / max(1, len(mine)),
            first_token_s=Spread.of([each.first_token_s for each in mine if each.first_token_s is not None]),
            inter_token_s=Spread.of([each.between_tokens_s for each in mine if each.between_tokens_s]),
            refused=sum(each.is_refused for each in mine),
            service_share=work / all_work_ms,
        )
    refused = [each for each in arrived if each.is_refused]
    fairness, least, tenants = _fairness(arrived, served, objectives, work_ms)
    return Figures(
        offered_per_s=len(arrived) / length_s,
        good_per_s=len(good) / length_s,
        tiers=tiers,
        refused=len(refused),
        refused_late=sum(is_refused_late(each) for each in refused),
        refusal_s=Spread.of(
            [each.ended_s for each in refused if each.ended_s is not None and not is_refused_late(each)]
        ),
        retry_after_s=Spread.of([each.retry_after_s for each in refused if each.retry_after_s is not None]),
        retry_jitter=_jitter(refused),
        left=sum(each.has_left for each in arrived),
        failed=Counter(_failure(each) for each in arrived if _failure(each)),
        fairness=fairness,
        least_served=least,
        tenants=tenants,
    )


def _jitter(refused: Sequence[RequestResult]) -> float:
    """By how much they are told apart who were refused together: half of the range over the middle of it.

    Of one tier within one second, as the median over all such groups of ten or more.
    """
    groups: dict[tuple[str, int], list[float]] = defaultdict(list)
    for each in refused:
        if each.retry_after_s is not None and not is_refused_late(each):
            groups[each.tier, int(each.at_s)].append(each.retry_after_s)
    spreads = sorted(
        (max(values) - min(values)) / (max(values) + min(values))
        for values in groups.values()
        if len(values) >= 10
    )
    return percentile(spreads, 0.5) if spreads else 0.0


def _failure(outcome: RequestResult) -> str:
    """Nothing for what was answered, refused with a time to come back, or given up by its client."""
    if outcome.is_refused or outcome.has_left or (outcome.status == 200 and not outcome.error):
        return ""
    return f"{outcome.status or 'no answer'} {outcome.error[:80]}"


def _fairness(
    arrived: Sequence[RequestResult],
    served: Sequence[RequestResult],
    objectives: Objectives,
    work_ms: Work,
) -> tuple[float, float, dict[str, dict[str, Any]]]:
    """Jain's index of what tenants got of what would have been fair, and the least of those shares.

    Fair within a tier is that who asks for little gets it all, and the others get the same.
    """
    wanted: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    got: dict[str, float] = defaultdict(float)
    good: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    for each in arrived:
        asked[each.tenant] += 1
        if each.attempt == 0:
            wanted[each.tier][each.tenant] += work_ms(each.prompt_tokens, each.asked_tokens)
        good[each.tenant] += is_good(each, objectives)
    for each in served:
        got[each.tenant] += work_ms(each.prompt_tokens, each.asked_tokens)
    tenants: dict[str, dict[str, Any]] = {}
    for tier, demands in wanted.items():
        fair = water_filled(demands, sum(got[tenant] for tenant in demands))
        for tenant, share in fair.items():
            tenants[tenant] = {
                "tier": tier,
                "asked": asked[tenant],
                "good": good[tenant],
                "of_fair": got[tenant] / share if share > 0 else 1.0,
            }
    # Whoever asks once or twice gets all or nothing, which says little.
    ratios = [min(1.0, each["of_fair"]) for each in tenants.values() if each["asked"] >= 10]
    if not any(ratios):
        return 1.0, 1.0, tenants
    return sum(ratios) ** 2 / (len(ratios) * sum(each**2 for each in ratios)), min(ratios), tenants


def water_filled(demands: Mapping[str, float], whole: float) -> dict[str, float]:
    """`whole` shared out: nobody gets more than it wants, and all who want more get the same."""
    shares: dict[str, float] = {}
    left, waiting = whole, sorted(demands.items(), key=lambda item: item[1])
    for place, (name, wanted) in enumerate(waiting):
        shares[name] = min(wanted, left / (len(waiting) - place))
        left -= shares[name]
    return shares


def recovery_s(outcomes: Sequence[RequestResult], objectives: Objectives, burst_s: float) -> float:
    """How long after the burst the last request was let down that had come a second or more after it."""
    late = [
        each.at_s - burst_s - 1.0
        for each in outcomes
        if each.at_s >= burst_s + 1.0 and not is_good(each, objectives)
    ]
    return max(late, default=0.0)
