"""What a canary is held against, gate by gate: what is shown for it, what against it, and in which words."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from functools import reduce
from typing import TYPE_CHECKING

from router.control.releases.evidence import (
    Estimate,
    Pair,
    Proportion,
    Spread,
    estimate,
    log_evidence_of_fewer,
    log_evidence_of_more,
    log_evidence_of_shift,
    times_until,
    together,
)
from router.control.releases.sums import (
    merge_proportions,
    merge_spreads,
    pair_up,
    pair_with,
    pair_with_originals,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.control.releases.arm_stats import ArmStats, Measured
    from router.control.releases.plan import Plan
    from router.control.releases.sums import Stretches

    Arms = Sequence[tuple[ArmStats, ArmStats]]

# Fewer than that may come of one mishap, whatever their share.
_LEAST_HITS = 3
# While little is known of the stable release it is not presumed to fail more often than that.
_MOST_PRESUMED_ERRORS = 0.1
# In the last step the canary is held against the stable release of the steps before, and may be so much
# slower than it may be beside it: a release that cannot bear all of the traffic is slower by far more.
_ALONE = 3.0
# A slow phase that a rollout happens to begin with should be over by then.
LEAST_TIME_S = 15
# Without anybody beside it a canary is not told from a busy minute of the whole machine any sooner.
_LEAST_TIME_ALONE_S = 60
# A step in which the stable release was asked that much less says little about its own rate.
_MOST_UNEVEN = 4
# What 95 of 100 requests keep may be missed by the rest.
_MOST_LATE = 0.05
# With how much confidence a canary is shown to be within its tolerances. An error rate that is above what is
# allowed is found by the evidence against it; this is only about not having looked long enough.
LOG_SHOWN = math.log(100)
LOG_SHOWN_RATE = math.log(20)
_MOST_LOOSE = 3


class Gate(str, Enum):
    ERRORS = "errors"
    FIRST_TOKEN = "time to first token"
    BETWEEN_TOKENS = "inter-token latency"
    LENGTH_UP = "longer answers"
    LENGTH_DOWN = "shorter answers"
    REFUSALS = "refusals"
    FIRST_TOKEN_OBJECTIVE = "objective for the first token"
    BETWEEN_TOKENS_OBJECTIVE = "objective between tokens"


# Half of the probability of a false rollback is for errors, the rest is for the other gates.
_SHARES = 2 * (len(Gate) - 1)


class Shown(str, Enum):
    WITHIN = "within"
    OUTSIDE = "outside"
    UNKNOWN = "not yet known"
    NOTHING = "nothing measured"


@dataclass(frozen=True, slots=True)
class Finding:
    """One gate. `against` and `within` are how much of the evidence that it takes is there, 1 being enough to
    roll back or to pass; `more` is how many requests of the canary it would still take to pass, where that
    can be told."""

    gate: Gate
    figures: str
    against: float = 0.0
    within: float | None = None  # None where nothing has to be shown
    more: int | None = None
    allowed: str = ""

    @property
    def shown(self) -> Shown:
        if self.against >= 1:
            return Shown.OUTSIDE
        if self.within is None:
            return Shown.NOTHING
        return Shown.WITHIN if self.within >= 1 else Shown.UNKNOWN

    def sentence(self) -> str:
        return f"{self.gate.value}: {self.figures}"


def is_fair(plan: Plan, step: int) -> bool:
    """Whether latencies of both arms can be compared within this step: an arm with most of the traffic has
    more to do than the other."""
    weight = plan.weights[step]
    return weight <= 0.5 or (weight < 1 and plan.weights[0] > 0.5)


def looseness(plan: Plan, step: int) -> int:
    """How much less than all has to be shown in this step: the more traffic comes next, the more."""
    last = max((number for number in range(len(plan.weights)) if is_fair(plan, number)), default=0)
    return min(max(last - step, 0), _MOST_LOOSE)


def findings(plan: Plan, measured: Measured) -> list[Finding]:
    """Every gate, whatever it says.

    All steps count, each against the stable release of the same step: with a share that changes, a bad hour
    of both arms would look like the canary's own. In the last step there is nobody to compare with, and the
    stable release of the steps before stands in; for latencies, which depend on the load, with a good deal
    of allowance.
    """
    tolerance, steps = plan.tolerance, measured.steps
    loose = looseness(plan, len(steps) - 1)
    limit = math.log(_SHARES / plan.alpha)
    found = [
        _of_rates(
            Gate.ERRORS,
            [(canary.errors, stable.errors) for canary, stable in steps],
            (tolerance.error_rate, tolerance.error_margin * 2**loose),
            math.log(2 / plan.alpha),
            _MOST_PRESUMED_ERRORS,
            measured.past,
        ),
        _of_rates(
            Gate.REFUSALS,
            [(canary.refusals, stable.refusals) for canary, stable in steps],
            (tolerance.refusal_rate, 2 * tolerance.refusal_rate * 2**loose),
            limit,
        ),
        _of_latency(Gate.FIRST_TOKEN, plan, steps, limit, "first_token"),
        _of_latency(Gate.BETWEEN_TOKENS, plan, steps, limit, "between_tokens"),
        *_of_lengths(steps, tolerance.length_ratio, 1 + loose, limit),
        _of_objective(
            Gate.FIRST_TOKEN_OBJECTIVE, [(one.late_first, two.late_first) for one, two in steps], limit
        ),
        _of_objective(
            Gate.BETWEEN_TOKENS_OBJECTIVE, [(one.late_between, two.late_between) for one, two in steps], limit
        ),
    ]
    if plan.weights == (1.0,):  # asked for, so there is nothing that it could be shown beside
        return [replace(each, within=None) for each in found]
    return found


def _of_rates(
    gate: Gate,
    steps: Sequence[tuple[Proportion, Proportion]],
    tolerances: tuple[float, float],
    limit: float,
    presumed: float = 1.0,
    past: Proportion = Proportion(),  # noqa: B008  # a value
) -> Finding:
    """The first tolerance is what may be shown against it, the second what has to be shown for it.

    Of the stable release at least what was seen counts; what may well be is not taken to be above what is
    presumed, nor above what its past makes likely.
    """
    canary, stable = _in_all(steps)
    figures = f"{canary.rate:.1%} of {canary.total:,} against {stable.rate:.1%} of {stable.total:,}"
    if not canary.total:
        return Finding(gate, figures, within=0.0 if stable.total else None)
    known = [
        (each.total / canary.total, beside if beside.total * _MOST_UNEVEN >= each.total else stable)
        for each, beside in steps
    ]
    most, margin = tolerances
    presumable = sum(
        part * max(each.rate, min(_with_past(each, past).cautious_rate, presumed)) for part, each in known
    )
    usual = min(0.95, presumable + most)
    against = log_evidence_of_more(canary, usual) / limit if canary.hits >= _LEAST_HITS else 0.0
    allowed = min(0.95, sum(part * each.rate for part, each in known) + margin)
    within = log_evidence_of_fewer(canary, allowed) / LOG_SHOWN_RATE
    more = None
    if 0 < within < 1:
        more = math.ceil(canary.total * (1 / within - 1))
    elif within <= 0 and canary.rate < allowed:
        more = math.ceil(LOG_SHOWN_RATE / -math.log1p(-margin))
    return Finding(gate, figures, max(against, 0.0), max(within, 0.0), more, f"up to {margin:.3g} more")


def _with_past(now: Proportion, past: Proportion) -> Proportion:
    """An hour that is worse than its past is not excused by it."""
    return now if now.rate > past.cautious_rate else merge_proportions(now, past)


def _in_all(steps: Sequence[tuple[Proportion, Proportion]]) -> tuple[Proportion, Proportion]:
    canary, stable = (reduce(merge_proportions, arms) for arms in zip(*steps, strict=True))
    return canary, stable


def _of_latency(gate: Gate, plan: Plan, steps: Arms, limit: float, name: str) -> Finding:
    """Steps of a fair share count for and against it, and so do mirrored requests of any; others with more of
    the traffic only against it."""
    ratio = plan.tolerance.latency_ratio
    timed = [tuple(getattr(arm.timed, name) for arm in arms) for arms in steps]
    fair = [arms for number, arms in enumerate(timed) if is_fair(plan, number)]
    mirrored: list[Stretches] = [getattr(canary.mirrored, name) for canary, _ in steps]
    alone = [canary for number, (canary, _) in enumerate(timed) if not is_fair(plan, number)]
    canary = reduce(merge_spreads, (getattr(arm, name) for arm, _ in steps))
    stable = reduce(merge_spreads, (getattr(arm, name) for _, arm in steps))
    if not canary.count and not stable.count:
        return Finding(gate, "none measured")
    found = together(
        estimate([pair for arms in fair for pair in pair_up(*arms)]),
        estimate([pair for ratios in mirrored for pair in pair_with_originals(ratios)]),
    )
    figures = f"{_milliseconds(canary)} against {_milliseconds(stable)}"
    if found is not None:
        figures += f", {_times(found.difference)} of what the stable release took at the same time"
    against = 0.0
    if found is not None and _lasting_s(fair, mirrored) >= LEAST_TIME_S:
        against = log_evidence_of_shift(found, math.log(ratio)) / limit
    beyond = estimate([pair for each in alone for pair in pair_with(each, stable)])
    if beyond is not None and sum(each.lasting_s for each in alone) >= _LEAST_TIME_ALONE_S:
        late = log_evidence_of_shift(beyond, math.log(ratio * _ALONE)) / limit
        if late > against:
            against, times = late, _times(beyond.difference)
            figures += f"; with most of the traffic {times} of what it took in the steps before"
    loose = 1 + looseness(plan, len(steps) - 1)
    allowed = f"up to {ratio**loose:.3g} times"
    within, more = _shown(found, math.log(ratio) * loose, canary.count)
    return Finding(gate, figures, max(against, 0.0), within, more, allowed)


def _lasting_s(fair: Sequence[tuple[Stretches, ...]], mirrored: Sequence[Stretches]) -> int:
    return sum(each.lasting_s for each in (*(canary for canary, *_ in fair), *mirrored))


def _shown(found: Estimate | None, allowed: float, count: int) -> tuple[float, int | None]:
    """How much of the evidence that a shift is below what is allowed is there, and how many requests lack."""
    if found is None:
        return 0.0, None
    within = max(-log_evidence_of_shift(found, allowed) / LOG_SHOWN, 0.0)
    if within >= 1:
        return within, 0
    times = times_until(found, allowed, LOG_SHOWN)
    return within, None if times is None else max(1, math.ceil(count * (times - 1)))


def _of_lengths(steps: Arms, ratio: float, loose: int, limit: float) -> list[Finding]:
    canary = reduce(merge_spreads, (canary.length for canary, _ in steps))
    stable = reduce(merge_spreads, (stable.length for _, stable in steps))
    if not canary.count and not stable.count:
        return [Finding(gate, "none measured") for gate in (Gate.LENGTH_UP, Gate.LENGTH_DOWN)]
    pairs: list[Pair] = []
    mirrored: list[Pair] = []
    for long, usual in steps:
        mirrored += pair_with_originals(long.mirrored.length)
        pairs += pair_up(long.timed.length, usual.timed.length) or pair_with(long.timed.length, stable)
    figures = f"{_tokens(canary)} against {_tokens(stable)}"
    up = together(estimate(pairs), estimate(mirrored))
    if up is None:
        return [Finding(gate, figures, within=0.0) for gate in (Gate.LENGTH_UP, Gate.LENGTH_DOWN)]
    figures += f", {_times(up.difference)} as many"
    down = Estimate(-up.difference, up.variance, up.count)
    made = []
    for gate, found in ((Gate.LENGTH_UP, up), (Gate.LENGTH_DOWN, down)):
        against = max(log_evidence_of_shift(found, math.log(ratio)) / limit, 0.0)
        within, more = _shown(found, math.log(ratio) * loose, canary.count)
        made.append(Finding(gate, figures, against, within, more, f"up to {ratio**loose:.3g} times"))
    return made


def _of_objective(gate: Gate, steps: Sequence[tuple[Proportion, Proportion]], limit: float) -> Finding:
    """Only against it, and not where the stable release misses the objective too."""
    canary, stable = _in_all(steps)
    if not canary.total:
        return Finding(gate, "no objective")
    figures = f"missed by {canary.rate:.1%} of {canary.total:,} against {stable.rate:.1%} of {stable.total:,}"
    against = 0.0
    if canary.hits >= _LEAST_HITS and stable.total and stable.rate <= _MOST_LATE:
        against = max(log_evidence_of_more(canary, _MOST_LATE) / limit, 0.0)
    return Finding(gate, figures, against, None, None, f"{_MOST_LATE:.0%}")


def _milliseconds(logs: Spread) -> str:
    """A typical one: the geometric mean, which one slow request does not spoil."""
    return f"{math.exp(logs.mean) * 1e3:,.1f} ms of {logs.count:,}" if logs.count else "none measured"


def _tokens(logs: Spread) -> str:
    return f"{math.exp(logs.mean):,.0f} tokens of {logs.count:,}" if logs.count else "none measured"


def _times(log_ratio: float) -> str:
    return f"{math.exp(log_ratio):.2f} times"
