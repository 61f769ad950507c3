"""What a canary is held against, gate by gate, with the figures in words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from typing import TYPE_CHECKING

from router.control.releases.evidence import (
    Pair,
    Proportion,
    Spread,
    log_evidence_of_more,
    log_evidence_of_shift,
    mean_difference,
)
from router.control.releases.sums import merge_proportions, merge_spreads, pair_up, pair_with

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.control.releases.arm_stats import Measured
    from router.control.releases.plan import Plan
    from router.control.releases.sums import Stretches

# Fewer than that may come of one mishap, whatever their share.
_LEAST_HITS = 3
# While little is known of the stable release it is not presumed to fail more often than that.
_MOST_PRESUMED_ERRORS = 0.1
# With more than this share of the traffic a canary has more to do than the stable release, and may be slower.
_MOST_SHARE_TO_COMPARE = 0.5
# Beyond that it is held against the stable release of the steps before, and may be so much slower than it
# may be beside it: a release that cannot bear all of the traffic is slower by far more.
_ALONE = 3.0
# A slow phase that a step happens to begin with should be over by then.
LEAST_TIME_S = 20
# A step in which the stable release was asked that much less says little about its own rate.
_MOST_UNEVEN = 4


class Gate(str, Enum):
    ERRORS = "errors"
    FIRST_TOKEN = "time to first token"
    BETWEEN_TOKENS = "inter-token latency"
    LENGTH_UP = "longer answers"
    LENGTH_DOWN = "shorter answers"
    REFUSALS = "refusals"


_SHARES = 2 * (len(Gate) - 1)


@dataclass(frozen=True, slots=True)
class Finding:
    """One gate's evidence, as the logarithm of the odds against the canary, and the figures behind it."""

    gate: Gate
    log_evidence: float
    log_limit: float
    figures: str

    @property
    def against(self) -> float:
        """How much of the evidence that it takes is there: from 1 on the gate objects."""
        return max(0.0, self.log_evidence / self.log_limit)

    def sentence(self) -> str:
        return f"{self.gate.value}: {self.figures}"


def findings(plan: Plan, measured: Measured) -> list[Finding]:
    """Every gate, whatever it says.

    Half of the probability of a false rollback is for errors, the rest is shared out among the other gates;
    what is tested anew in each step has to share its part among the steps. Errors, refusals and lengths are
    counted over all steps, but always against the stable release of the same step: with a share that
    changes, a bad hour of both arms would look like the canary's own. In the last step there is nobody to
    compare with, and the stable release of the steps before stands in; for latencies, which depend on the
    load, with a good deal of allowance.
    """
    tolerance = plan.tolerance
    once = math.log(_SHARES / plan.alpha)
    errors = [(canary.errors, stable.errors) for canary, stable in measured.steps]
    refusals = [(canary.refusals, stable.refusals) for canary, stable in measured.steps]
    return [
        _of_rates(Gate.ERRORS, errors, tolerance.error_rate, math.log(2 / plan.alpha), _MOST_PRESUMED_ERRORS),
        _of_rates(Gate.REFUSALS, refusals, tolerance.refusal_rate, once),
        *_of_latencies(plan, measured),
        *_of_lengths(measured, tolerance.length_ratio, once),
    ]


def _of_rates(
    gate: Gate,
    steps: Sequence[tuple[Proportion, Proportion]],
    tolerance: float,
    log_limit: float,
    presumed: float = 1.0,
) -> Finding:
    canary = reduce(merge_proportions, (each for each, _ in steps))
    stable = reduce(merge_proportions, (each for _, each in steps))
    allowed = tolerance
    if canary.total:
        expected = (each.total * _stable_rate(each, beside, stable, presumed) for each, beside in steps)
        allowed = min(0.95, sum(expected) / canary.total + tolerance)
    evidence = log_evidence_of_more(canary, allowed) if canary.hits >= _LEAST_HITS else 0.0
    figures = f"{canary.rate:.1%} of {canary.total:,} against {stable.rate:.1%} of {stable.total:,}"
    return Finding(gate, evidence, log_limit, figures)


def _stable_rate(canary: Proportion, beside: Proportion, stable: Proportion, presumed: float) -> float:
    """At least what was seen; what may well be is not taken to be above what is presumed."""
    known = beside if beside.total * _MOST_UNEVEN >= canary.total else stable
    return max(known.rate, min(known.cautious_rate, presumed))


def _of_latencies(plan: Plan, measured: Measured) -> list[Finding]:
    """Of the current step alone: what a release takes depends on how much it has to do."""
    canary = measured.steps[-1][0]
    firsts = [stable.first_token for _, stable in measured.steps]
    betweens = [stable.between_tokens for _, stable in measured.steps]
    return [
        _of_latency(
            Gate.FIRST_TOKEN, plan, canary.timed.first_token, measured.steps[-1][1].timed.first_token, firsts
        ),
        _of_latency(
            Gate.BETWEEN_TOKENS,
            plan,
            canary.timed.between_tokens,
            measured.steps[-1][1].timed.between_tokens,
            betweens,
        ),
    ]


def _of_latency(
    gate: Gate, plan: Plan, canary: Stretches, stable: Stretches, stable_by_step: Sequence[Spread]
) -> Finding:
    is_fair = plan.weights[len(stable_by_step) - 1] <= _MOST_SHARE_TO_COMPARE
    usual = stable_by_step[-1] if is_fair else reduce(merge_spreads, stable_by_step)
    pairs = pair_up(canary, stable) if is_fair else pair_with(canary, usual)
    allowed = plan.tolerance.latency_ratio * (1 if is_fair else _ALONE)
    evidence = 0.0
    if canary.lasting_s >= LEAST_TIME_S:
        evidence = log_evidence_of_shift(pairs, math.log(allowed))
    mine = reduce(merge_spreads, (spread for _, spread in canary.parts), Spread())
    figures = f"{_milliseconds(mine)} against {_milliseconds(usual)}"
    if pairs:
        when = "at the same time" if is_fair else "in the steps before"
        figures += f", {_times(mean_difference(pairs))} of what the stable release took {when}"
    return Finding(gate, evidence, math.log(_SHARES * len(plan.weights) / plan.alpha), figures)


def _of_lengths(measured: Measured, ratio: float, log_limit: float) -> list[Finding]:
    canary = reduce(merge_spreads, (canary.length for canary, _ in measured.steps))
    stable = reduce(merge_spreads, (stable.length for _, stable in measured.steps))
    pairs: list[Pair] = []
    for long, usual in measured.steps:
        pairs += pair_up(long.timed.length, usual.timed.length) or pair_with(long.timed.length, stable)
    figures = f"{_tokens(canary)} against {_tokens(stable)}, {_times(mean_difference(pairs))} as many"
    return [
        Finding(gate, log_evidence_of_shift(each, math.log(ratio)), log_limit, figures)
        for gate, each in (
            (Gate.LENGTH_UP, pairs),
            (Gate.LENGTH_DOWN, [Pair(_mirrored(pair.canary), _mirrored(pair.stable)) for pair in pairs]),
        )
    ]


def _mirrored(spread: Spread) -> Spread:
    return Spread(spread.count, -spread.mean, spread.squares)


def _milliseconds(logs: Spread) -> str:
    """A typical one: the geometric mean, which one slow request does not spoil."""
    return f"{math.exp(logs.mean) * 1e3:,.1f} ms of {logs.count:,}" if logs.count else "none measured"


def _tokens(logs: Spread) -> str:
    return f"{math.exp(logs.mean):,.0f} tokens of {logs.count:,}" if logs.count else "none measured"


def _times(log_ratio: float) -> str:
    return f"{math.exp(log_ratio):.2f} times"
