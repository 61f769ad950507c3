"""Whether a canary goes on, is promoted or is taken back, decided from what was measured."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from router.control.releases.canary_checks import findings
from router.control.releases.evidence import Proportion, Spread
from router.control.releases.sums import (
    Stretches,
    merge_proportions,
    merge_spreads,
    merge_stretches,
    spread_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.control.releases.canary_checks import Finding

# A canary that has not answered one of so many requests needs no statistics.
ALL_FAILED = 20
# Before that a step that nobody asks is not worth a remark.
_IDLE_AFTER_S = 60.0


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How much worse than the stable release a canary may be before the evidence counts against it."""

    error_rate: float = 0.002
    latency_ratio: float = 1.25
    length_ratio: float = 1.5
    refusal_rate: float = 0.05
    golden_failures: int = 0

    def __post_init__(self) -> None:
        for name in ("error_rate", "refusal_rate"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"the tolerance {name} is {getattr(self, name):g}; allowed: 0 to below 1")
        for name in ("latency_ratio", "length_ratio"):
            if not 1 <= getattr(self, name) <= 1000:
                raise ValueError(f"the tolerance {name} is {getattr(self, name):g}; allowed: 1 to 1000")
        if self.golden_failures < 0:
            raise ValueError(f"the tolerance golden_failures is {self.golden_failures}; allowed: 0 and more")


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of a rollout; one is over when it has lasted and been asked long enough without a fault."""

    weights: tuple[float, ...] = (0.01, 0.05, 0.25, 1.0)
    min_requests: int = 50
    min_duration_s: float = 60.0
    alpha: float = 0.01
    tolerance: Tolerance = field(default_factory=Tolerance)

    def __post_init__(self) -> None:
        if not self.weights or list(self.weights) != sorted(set(self.weights)) or not self.weights[0] > 0:
            raise ValueError("the steps of a rollout grow, from more than 0")
        if self.weights[-1] != 1.0:
            raise ValueError("the last step of a rollout is 1: all of the traffic")
        if not 0 < self.alpha < 1:
            raise ValueError("alpha is a probability of a false rollback, between 0 and 1")
        if self.min_requests < 0:
            raise ValueError(f"a step of a rollout needs {self.min_requests} requests; allowed: 0 and more")
        if not 0 <= self.min_duration_s < math.inf:
            raise ValueError(f"a step of a rollout lasts {self.min_duration_s:g} s; allowed: 0 and more")


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer of one arm; what was not measured is None. `at_s` is when it was asked for."""

    failed: bool
    first_token_s: float | None = None
    between_tokens_s: float | None = None
    tokens: int | None = None
    refused: bool | None = None
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Timed:
    """Logarithms of what was measured, by when: what compares the arms within the same time."""

    first_token: Stretches = field(default_factory=Stretches)
    between_tokens: Stretches = field(default_factory=Stretches)
    length: Stretches = field(default_factory=Stretches)


@dataclass(frozen=True, slots=True)
class ArmStats:
    """All that is kept of an arm in a step, however many requests it has answered."""

    errors: Proportion = field(default_factory=Proportion)
    refusals: Proportion = field(default_factory=Proportion)
    first_token: Spread = field(default_factory=Spread)
    between_tokens: Spread = field(default_factory=Spread)
    length: Spread = field(default_factory=Spread)
    timed: Timed = field(default_factory=Timed)

    def with_one(self, sample: Sample) -> ArmStats:
        return self.with_all((sample,))

    def with_all(self, samples: Iterable[Sample]) -> ArmStats:
        every = list(samples)
        good = [each for each in every if not each.failed]
        refused = [each.refused for each in good if each.refused is not None]
        first = _logs((each.at_s, each.first_token_s) for each in good)
        between = _logs((each.at_s, each.between_tokens_s) for each in good)
        length = _logs((each.at_s, each.tokens) for each in good)
        return ArmStats(
            merge_proportions(self.errors, Proportion(len(every) - len(good), len(every))),
            merge_proportions(self.refusals, Proportion(sum(refused), len(refused))),
            merge_spreads(self.first_token, spread_of(value for _, value in first)),
            merge_spreads(self.between_tokens, spread_of(value for _, value in between)),
            merge_spreads(self.length, spread_of(value for _, value in length)),
            Timed(
                self.timed.first_token.with_all(first),
                self.timed.between_tokens.with_all(between),
                self.timed.length.with_all(length),
            ),
        )


def _logs(timed: Iterable[tuple[float, float | None]]) -> list[tuple[float, float]]:
    """What is not a number above 0 was not measured."""
    return [(at_s, math.log(value)) for at_s, value in timed if value is not None and 0 < value < math.inf]


def merge_stats(one: ArmStats, other: ArmStats) -> ArmStats:
    """What two routers have counted, as if one had counted it all."""
    return ArmStats(
        merge_proportions(one.errors, other.errors),
        merge_proportions(one.refusals, other.refusals),
        merge_spreads(one.first_token, other.first_token),
        merge_spreads(one.between_tokens, other.between_tokens),
        merge_spreads(one.length, other.length),
        Timed(
            merge_stretches(one.timed.first_token, other.timed.first_token),
            merge_stretches(one.timed.between_tokens, other.timed.between_tokens),
            merge_stretches(one.timed.length, other.timed.length),
        ),
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """The canary and the stable release in each step so far, the current one last."""

    steps: tuple[tuple[ArmStats, ArmStats], ...]


class Verdict(str, Enum):
    WAIT = "wait"
    ADVANCE = "advance"
    PROMOTE = "promote"
    ROLL_BACK = "roll back"


@dataclass(frozen=True, slots=True)
class Decision:
    verdict: Verdict
    reason: str
    is_idle: bool = False  # it waits for requests that do not come


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a rollout stands; at step -1 its canary has got no request yet.

    `golden_step` is the last step for which the golden prompts were tried, and `golden_failed` how many of
    them failed there.
    """

    step: int = 0
    step_began_s: float = 0.0
    step_requests: int = 0
    paused: bool = False
    golden_step: int = -2
    golden_failed: int = 0
    golden_note: str = ""
    told_idle: bool = False


def decide(plan: Plan, progress: Progress, measured: Measured, now_s: float) -> Decision:
    """Rolls back once a gate's evidence reaches its limit; else waits until the step has lasted."""
    objection = _objection(plan, progress, measured)
    if objection is not None:
        return Decision(Verdict.ROLL_BACK, objection)
    if progress.paused:
        return Decision(Verdict.WAIT, "paused")
    waits = _wait(plan, progress, measured, now_s)
    if waits is not None:
        return waits
    if progress.step + 1 < len(plan.weights):
        after = plan.weights[progress.step + 1]
        return Decision(Verdict.ADVANCE, f"no gate objects: on to {after * 100:.4g}% of the traffic")
    return Decision(Verdict.PROMOTE, "no gate objects to the canary with all of the traffic")


def golden_objection(plan: Plan, progress: Progress) -> str | None:
    allowed = plan.tolerance.golden_failures
    if progress.golden_failed <= allowed:
        return None
    note = f" ({progress.golden_note})" if progress.golden_note else ""
    return f"golden prompts: {progress.golden_failed} failed, {allowed} are allowed{note}"


def _objection(plan: Plan, progress: Progress, measured: Measured) -> str | None:
    golden = golden_objection(plan, progress)
    if golden is not None:
        return golden
    counted = sum(canary.errors.total for canary, _ in measured.steps)
    if counted >= ALL_FAILED and counted == sum(canary.errors.hits for canary, _ in measured.steps):
        return f"errors: all of the canary's first {counted:,} requests failed"
    worst = max(findings(plan, measured), key=_against)
    return worst.sentence() if _against(worst) >= 1 else None


def _against(finding: Finding) -> float:
    return finding.against


def _wait(plan: Plan, progress: Progress, measured: Measured, now_s: float) -> Decision | None:
    canary, stable = (each.errors.total for each in measured.steps[-1])
    missing = plan.min_requests - canary
    lasted_s = now_s - progress.step_began_s
    left_s = plan.min_duration_s - lasted_s
    number = progress.step + 1
    if missing > 0 and not canary and lasted_s >= max(_IDLE_AFTER_S, plan.min_duration_s):
        if not stable:
            reason = f"step {number} has had no request in {lasted_s:,.0f} s: it goes on when they come"
        else:
            reason = (
                f"the canary got none of the {stable:,} requests of step {number} in {lasted_s:,.0f} s: "
                "where the split is sticky, all who ask may belong to the stable release"
            )
        return Decision(Verdict.WAIT, reason, is_idle=True)
    if missing > 0 or left_s > 0:
        waits = [f"{missing:,} more requests"] * (missing > 0) + [f"{left_s:.0f} s more"] * (left_s > 0)
        return Decision(Verdict.WAIT, f"step {number} needs {' and '.join(waits)}")
    if plan.weights[progress.step] < 1 and not any(each.errors.total for _, each in measured.steps):
        reason = (
            f"the stable release got none of the {canary:,} requests of step {number}, so there is nothing "
            "to compare with: where the split is sticky, all who ask may belong to the canary"
        )
        return Decision(Verdict.WAIT, reason, is_idle=True)
    if progress.golden_step < progress.step:
        return Decision(Verdict.WAIT, f"step {number} waits for its golden prompts")
    return None
