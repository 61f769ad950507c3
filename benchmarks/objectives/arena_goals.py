"""The goals of the load tests, T02 to T04 and T08, and what runs in the arena made of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.objectives.judging import Figures
from benchmarks.objectives.prediction import GOAL, Compared
from python_backend.costs.step_cost import StepCost
from python_backend.wire.tiers import Tier

OF_PEAK, OF_SOLO, OF_WEIGHT, JITTER = 0.95, 0.9, 0.8, 0.2
REFUSAL_S, RECOVERY_S = 0.05, 10.0
WEIGHTS = {Tier.INTERACTIVE: 0.6, Tier.STANDARD: 0.3, Tier.BATCH: 0.1}
OURS = "objectives"


@dataclass(frozen=True)
class Kept:
    """One run under one policy. `others` are all tenants but the one who floods."""

    policy: str
    run: str
    times: float
    clamped: int
    cost: StepCost
    first_token_s: dict[str, float]
    figures: Figures
    others: Figures
    compared: Compared | None = None
    recovery_s: float | None = None


@dataclass(frozen=True)
class Goal:
    what: str
    is_met: bool


def goals(kept: Sequence[Kept]) -> Iterator[Goal]:
    """`kept` are runs of one policy."""
    steady = sorted((each for each in kept if each.run.endswith("x")), key=lambda each: each.times)
    if len(steady) > 1:
        yield from _of_overload(steady)
    by_name = {each.run: each for each in kept}
    storm = next((each for each in kept if "retries" in each.run), None)
    if steady and storm:
        share = _ratio(storm.figures.good_per_s, steady[-1].figures.good_per_s)
        yield Goal(f"T08: goodput with retries {share:.0%} of that without ({OF_PEAK:.0%})", share >= OF_PEAK)
    if "alone" in by_name and "flooded" in by_name:
        share = _ratio(by_name["flooded"].others.good_per_s, by_name["alone"].others.good_per_s)
        yield Goal(f"T04: the others' goodput {share:.1%} of that alone ({OF_SOLO:.0%})", share >= OF_SOLO)
    if "burst" in by_name:
        yield _of_burst(by_name["burst"])
    yield from _of_forecasts([each.compared for each in kept if each.compared])


def _ratio(value: float, to: float) -> float:
    return value / max(to, 1e-9)


def _of_overload(steady: Sequence[Kept]) -> Iterator[Goal]:
    """The last is the most."""
    most, peak = steady[-1], max(each.figures.good_per_s for each in steady)
    found, share = most.figures, _ratio(most.figures.good_per_s, peak)
    yield Goal(f"T02: goodput at {most.run} {share:.0%} of the peak ({OF_PEAK:.0%})", share >= OF_PEAK)
    urgent = Tier.INTERACTIVE.label
    p95_s, limit_s = found.tiers[urgent].first_token_s.p95 or 0.0, most.first_token_s[urgent]
    yield Goal(f"T02: {urgent} p95 first token {p95_s:.2f} s ({limit_s:g} s)", p95_s <= limit_s)
    shares = {tier: found.tiers[tier.label].service_share / weight for tier, weight in WEIGHTS.items()}
    told = ", ".join(f"{tier.label} {each:.0%}" for tier, each in shares.items())
    is_met = min(shares.values()) >= OF_WEIGHT
    yield Goal(f"T02: work done of each tier's weight: {told} ({OF_WEIGHT:.0%})", is_met)
    p99_s = found.refusal_s.p99 or 0.0
    yield Goal(f"T02: refused at once, p99 {1000 * p99_s:.0f} ms ({1000 * REFUSAL_S:g})", p99_s <= REFUSAL_S)
    failed = sum(sum(each.figures.failed.values()) for each in steady)
    yield Goal(f"T02: {failed} answers neither 200 nor 503 with Retry-After (0)", failed == 0)
    spread = found.retry_jitter
    yield Goal(f"T08: Retry-After of those refused together ±{spread:.0%} (±{JITTER:.0%})", spread >= JITTER)


def _of_burst(burst: Kept) -> Goal:
    after_s, failed = burst.recovery_s or 0.0, sum(burst.figures.failed.values())
    what = f"T03: {failed} failed (0), all good again {after_s:.1f} s after the burst ({RECOVERY_S:g} s)"
    return Goal(what, failed == 0 and after_s <= RECOVERY_S)


def _of_forecasts(compared: Sequence[Compared]) -> Iterator[Goal]:
    if not compared:
        return
    goodput = max(each.goodput_error for each in compared)
    yield Goal(f"predicted goodput off by {goodput:.0%} at most ({GOAL:.0%})", goodput <= GOAL)
    first = max((error for each in compared for error in each.first_token_errors.values()), default=0.0)
    yield Goal(f"predicted p95 first token off by {first:.0%} at most ({GOAL:.0%})", first <= GOAL)
