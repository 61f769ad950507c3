"""Whether a canary goes on, is promoted or is taken back, decided from what was measured."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum

from router.releases.evidence import Proportion, Spread, log_evidence_of_more, log_evidence_of_shift


class Gate(str, Enum):
    """What a canary is held against; each has a sentence for the one who asks why."""

    ERRORS = "errors"
    FIRST_TOKEN = "time to first token"
    BETWEEN_TOKENS = "inter-token latency"
    LENGTH_UP = "longer answers"
    LENGTH_DOWN = "shorter answers"
    REFUSALS = "refusals"
    GOLDEN = "golden prompts"


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How much worse than the stable release a canary may be before the evidence counts against it."""

    error_rate: float = 0.002
    latency_ratio: float = 1.25
    length_ratio: float = 1.5
    refusal_rate: float = 0.05
    golden_failures: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of a rollout; one is over when it has lasted and been asked long enough without a fault."""

    weights: tuple[float, ...] = (0.01, 0.05, 0.25, 1.0)
    min_requests: int = 50
    min_duration_s: float = 60.0
    alpha: float = 0.01
    tolerance: Tolerance = field(default_factory=Tolerance)

    def __post_init__(self) -> None:
        if not self.weights or list(self.weights) != sorted(set(self.weights)) or self.weights[0] <= 0:
            raise ValueError("the steps of a rollout grow, from more than 0")
        if self.weights[-1] != 1.0:
            raise ValueError("the last step of a rollout is 1: all of the traffic")
        if not 0 < self.alpha < 1:
            raise ValueError("alpha is a probability of a false rollback, between 0 and 1")


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer of one arm; what was not measured is None."""

    failed: bool
    first_token_s: float | None = None
    between_tokens_s: float | None = None
    tokens: int | None = None
    refused: bool = False


@dataclass(frozen=True, slots=True)
class ArmStats:
    """All that is kept of an arm, however many requests it has answered."""

    errors: Proportion = field(default_factory=Proportion)
    refusals: Proportion = field(default_factory=Proportion)
    first_token: Spread = field(default_factory=Spread)
    between_tokens: Spread = field(default_factory=Spread)
    length: Spread = field(default_factory=Spread)

    def with_one(self, sample: Sample) -> ArmStats:
        if sample.failed:
            return replace(self, errors=self.errors.with_one(True))
        return ArmStats(
            self.errors.with_one(False),
            self.refusals.with_one(sample.refused),
            _with_log(self.first_token, sample.first_token_s),
            _with_log(self.between_tokens, sample.between_tokens_s),
            _with_log(self.length, None if sample.tokens is None else float(sample.tokens)),
        )


def _with_log(spread: Spread, value: float | None) -> Spread:
    return spread if value is None or value <= 0 else spread.with_one(math.log(value))


@dataclass(frozen=True, slots=True)
class Finding:
    """One gate's evidence, as the logarithm of the odds against the canary, and the figures behind it."""

    gate: Gate
    log_evidence: float
    stable: float
    canary: float

    def sentence(self) -> str:
        if self.gate in (Gate.ERRORS, Gate.REFUSALS):
            figures = f"{self.canary:.2%} against {self.stable:.2%}"
        else:
            figures = f"{self.canary:.4g} against {self.stable:.4g}"
        return f"{self.gate.value}: {figures}, odds 1 to {math.exp(min(self.log_evidence, 700)):,.0f}"


def findings(stable: ArmStats, canary: ArmStats, tolerance: Tolerance) -> list[Finding]:
    """Every gate, whatever it says."""
    slower, longer = math.log(tolerance.latency_ratio), math.log(tolerance.length_ratio)
    allowed_errors = _allowed(stable.errors, tolerance.error_rate)
    allowed_refusals = _allowed(stable.refusals, tolerance.refusal_rate)
    return [
        Finding(
            Gate.ERRORS,
            log_evidence_of_more(canary.errors, allowed_errors),
            _rate(stable.errors),
            _rate(canary.errors),
        ),
        Finding(
            Gate.REFUSALS,
            log_evidence_of_more(canary.refusals, allowed_refusals),
            _rate(stable.refusals),
            _rate(canary.refusals),
        ),
        _shift(Gate.FIRST_TOKEN, canary.first_token, stable.first_token, slower),
        _shift(Gate.BETWEEN_TOKENS, canary.between_tokens, stable.between_tokens, slower),
        _shift(Gate.LENGTH_UP, canary.length, stable.length, longer),
        _shift(Gate.LENGTH_DOWN, _mirrored(canary.length), _mirrored(stable.length), longer),
    ]


def _allowed(stable: Proportion, tolerance: float) -> float:
    """The stable release's own rate, and the tolerance beyond it."""
    return min(0.95, stable.cautious_rate + tolerance)


def _rate(counted: Proportion) -> float:
    return counted.hits / counted.total if counted.total else 0.0


def _shift(gate: Gate, canary: Spread, stable: Spread, allowed: float) -> Finding:
    sign = -1 if gate is Gate.LENGTH_DOWN else 1
    evidence = log_evidence_of_shift(canary, stable, allowed)
    return Finding(gate, evidence, math.exp(sign * stable.mean), math.exp(sign * canary.mean))


def _mirrored(spread: Spread) -> Spread:
    return Spread(spread.count, -spread.mean, spread.squares)


class Verdict(str, Enum):
    WAIT = "wait"
    ADVANCE = "advance"
    PROMOTE = "promote"
    ROLL_BACK = "roll back"


@dataclass(frozen=True, slots=True)
class Decision:
    verdict: Verdict
    reason: str


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a rollout stands; the figures of the arms go on over its steps."""

    step: int = 0
    step_began_s: float = 0.0
    step_requests: int = 0
    paused: bool = False


def decide(
    plan: Plan, progress: Progress, stable: ArmStats, canary: ArmStats, golden_failed: int, now_s: float
) -> Decision:
    """Rolls back once a gate's evidence reaches 1 / alpha, split over the gates; else waits its time."""
    if golden_failed > plan.tolerance.golden_failures:
        allowed = plan.tolerance.golden_failures
        reason = f"{Gate.GOLDEN.value}: {golden_failed} failed, {allowed} are allowed"
        return Decision(Verdict.ROLL_BACK, reason)
    found = findings(stable, canary, plan.tolerance)
    limit = math.log(len(found) / plan.alpha)
    worst = max(found, key=lambda finding: finding.log_evidence)
    if worst.log_evidence >= limit:
        return Decision(Verdict.ROLL_BACK, worst.sentence())
    if progress.paused:
        return Decision(Verdict.WAIT, "paused")
    missing = plan.min_requests - progress.step_requests
    left_s = progress.step_began_s + plan.min_duration_s - now_s
    if missing > 0 or left_s > 0:
        waits = [f"{missing} more requests"] * (missing > 0) + [f"{left_s:.0f} s more"] * (left_s > 0)
        return Decision(Verdict.WAIT, f"step {progress.step + 1} needs {' and '.join(waits)}")
    if progress.step + 1 < len(plan.weights):
        after = plan.weights[progress.step + 1]
        return Decision(Verdict.ADVANCE, f"no gate objects: on to {after:.0%} of the traffic")
    return Decision(Verdict.PROMOTE, "no gate objects to the canary with all of the traffic")
