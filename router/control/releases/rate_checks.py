"""Errors, refusals and missed objectives: parts of a canary's requests, held against the stable release's."""

from __future__ import annotations

import math
from functools import reduce
from typing import TYPE_CHECKING

from router.control.releases.evidence import Proportion, log_evidence_of_fewer, log_evidence_of_more
from router.control.releases.gates import LOG_SHOWN_RATE, Finding
from router.control.releases.sums import merge_proportions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.control.releases.gates import Gate

    Rates = Sequence[tuple[Proportion, Proportion]]  # of the canary and the stable release, step by step

# Fewer than that may come of one mishap, whatever their share.
_LEAST_HITS = 3
# Failures come whole, and the rarer they are allowed to be, the further one of them carries the evidence over
# its limit: up to this rate a canary that keeps what is allowed crosses a limit that is lower by so much no
# more often than it may. tests/router/control/releases/test_rate_checks.py computes how often, exactly.
_RARE, _OVERSHOOT = 0.01, 1.0
# A step in which the stable release was asked that much less says little about its own rate.
_MOST_UNEVEN = 4
# What 95 of 100 requests keep may be missed by the rest.
_MOST_LATE = 0.05


def check_rate(
    gate: Gate,
    steps: Rates,
    tolerances: tuple[float, float],
    limit: float,
    *,
    is_alone: bool = False,
    presumed: float = 1.0,
    past: Proportion = Proportion(),  # noqa: B008  # a value
) -> Finding:
    """The first tolerance is what may be shown against it, the second what has to be shown for it.

    Of the stable release at least what was seen counts; what may well be is not taken to be above what is
    presumed, nor above what its past makes likely. A canary that `is_alone`, with all of the traffic, has to
    show anew that it stays as it was: what it was shown to be before is shown for good, and says nothing of
    how it bears that.
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
    against = _against(canary, min(0.95, presumable + most), limit)
    seen, rate = canary, sum(part * each.rate for part, each in known)
    if is_alone:
        seen, before = steps[-1][0], [arm for arms in steps[:-1] for arm in arms]
        rate = reduce(merge_proportions, before, steps[-1][1]).rate
        figures += f", in this step {seen.rate:.1%} of {seen.total:,}"
    within, more = _shown(seen, rate, margin)
    return Finding(gate, figures, against, within, more, f"up to {margin:.3g} more")


def _against(canary: Proportion, usual: float, limit: float) -> float:
    if canary.hits < _LEAST_HITS:
        return 0.0
    return max(log_evidence_of_more(canary, usual) / limit_at(usual, limit), 0.0)


def _shown(seen: Proportion, rate: float, margin: float) -> tuple[float, int | None]:
    """How much of the evidence that it is less than so much above a rate is there, and what it lacks."""
    allowed = min(0.95, rate + margin)
    within = log_evidence_of_fewer(seen, allowed) / LOG_SHOWN_RATE
    more = None
    if 0 < within < 1:
        more = math.ceil(seen.total * (1 / within - 1))
    elif within <= 0 and seen.rate < allowed:
        more = math.ceil(LOG_SHOWN_RATE / -math.log1p(-min(margin, 0.95)))
    return max(within, 0.0), more


def limit_at(rate: float, limit: float) -> float:
    """What the evidence that a rate is above this one has to reach."""
    return limit - _OVERSHOOT if rate <= _RARE else limit


def _with_past(now: Proportion, past: Proportion) -> Proportion:
    """An hour that is worse than its past is not excused by it."""
    return now if now.rate > past.cautious_rate else merge_proportions(now, past)


def _in_all(steps: Rates) -> tuple[Proportion, Proportion]:
    canary, stable = (reduce(merge_proportions, arms) for arms in zip(*steps, strict=True))
    return canary, stable


def check_objective(gate: Gate, steps: Rates, limit: float) -> Finding:
    """Only against it, and not where the stable release misses the objective too."""
    canary, stable = _in_all(steps)
    if not canary.total:
        return Finding(gate, "no objective")
    figures = f"missed by {canary.rate:.1%} of {canary.total:,} against {stable.rate:.1%} of {stable.total:,}"
    against = 0.0
    if canary.hits >= _LEAST_HITS and stable.total and stable.rate <= _MOST_LATE:
        against = max(log_evidence_of_more(canary, _MOST_LATE) / limit, 0.0)
    return Finding(gate, figures, against, None, None, f"{_MOST_LATE:.0%}")
