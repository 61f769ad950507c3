"""How long a rollout takes where nothing is wrong with its canary, told before anything is measured."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from router.control.releases.canary_checks import MARGIN_ALONE, is_alone, is_fair, looseness
from router.control.releases.evidence import (
    Estimate,
    Proportion,
    log_evidence_of_fewer,
    log_evidence_of_shift,
)
from router.control.releases.gates import LOG_SHOWN, LOG_SHOWN_RATE
from router.control.releases.shift_checks import LEAST_TIME_S

if TYPE_CHECKING:
    from router.control.releases.plan import Plan

# By how much the times of requests differ as a rule, as the deviation of their logarithms; and those of two
# releases on the same prompt at the same time.
_SCATTER, _SCATTER_OF_PAIRS = 0.7, 0.35
_MOST_STRETCHES = 64
# In a second that many requests say as much as more of them.
_MOST_WORTH_PER_S = 5.0
_LONGEST_S = 30 * 86_400.0
# How long an answer takes as a rule: meanwhile no recorded prompts are asked.
_ANSWER_S = 2.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """Requests of each arm, and mirrored and replayed ones of both, so far."""

    canary: float = 0.0
    stable: float = 0.0
    pairs: float = 0.0

    def after(self, plan: Plan, step: int, per_s: float, time_s: float) -> _Seen:
        """Those of the stable release that are mirrored are compared with their copies alone."""
        canary_per_s = plan.weights[step] * per_s
        stable_per_s = per_s - canary_per_s
        # Those that come too soon after the last copy are not mirrored.
        mirrored_per_s = stable_per_s / (1 + stable_per_s / plan.mirror_per_s) if plan.mirror_per_s else 0.0
        stable_per_s -= mirrored_per_s
        return _Seen(
            self.canary + min(canary_per_s, _MOST_WORTH_PER_S) * time_s,
            self.stable + min(stable_per_s, _MOST_WORTH_PER_S) * time_s,
            self.pairs + min(mirrored_per_s + _replayed_per_s(plan, per_s), _MOST_WORTH_PER_S) * time_s,
        )


def _replayed_per_s(plan: Plan, per_s: float) -> float:
    """As often as nobody is being answered, where requests come by chance."""
    return plan.replay_per_s * math.exp(-per_s * _ANSWER_S)


def expected_s(plan: Plan, per_s: float) -> float:
    """From the first request on, for a model that is asked so often; infinite where that is never."""
    if per_s <= 0 and not plan.replay_per_s:
        return math.inf
    whole_s, seen = 0.0, _Seen()
    for step, weight in enumerate(plan.weights):
        answered_per_s = weight * per_s + _replayed_per_s(plan, per_s)
        step_s = max(plan.min_duration_s, plan.min_requests / answered_per_s)
        if is_fair(plan, step) and plan.weights != (1.0,):
            step_s = max(step_s, LEAST_TIME_S)
            while not _is_shown(plan, step, seen.after(plan, step, per_s, step_s)) and step_s < _LONGEST_S:
                step_s *= 1.05
            seen = seen.after(plan, step, per_s, step_s)
        elif is_alone(plan, step):
            step_s = max(step_s, _needed_alone(plan) / answered_per_s)
        whole_s += step_s
    return whole_s


def _needed_alone(plan: Plan) -> int:
    """Requests of a canary with all of the traffic: its errors take the most."""
    margin = min(plan.tolerance.error_margin * MARGIN_ALONE, 0.95)
    least = math.ceil(LOG_SHOWN_RATE / -math.log1p(-margin))  # where everything was bet on no errors at all
    while log_evidence_of_fewer(Proportion(0, least), margin) < LOG_SHOWN_RATE:
        least = math.ceil(least * 1.05)
    return least


def _is_shown(plan: Plan, step: int, seen: _Seen) -> bool:
    loose, tolerance = looseness(plan, step), plan.tolerance
    answered = Proportion(0, int(seen.canary + seen.pairs))
    if log_evidence_of_fewer(answered, tolerance.error_margin * 2**loose) < LOG_SHOWN_RATE:
        return False
    allowed = math.log(tolerance.latency_ratio) * (1 + loose)
    precision = seen.pairs / (2 * _SCATTER_OF_PAIRS**2)
    if seen.canary and seen.stable:
        precision += 1 / (_SCATTER**2 * (1 / seen.canary + 1 / seen.stable))
    count = min(_MOST_STRETCHES, max(seen.pairs, min(seen.canary, seen.stable)))
    found = Estimate(0.0, 1 / max(precision, 1e-9), count)
    return -log_evidence_of_shift(found, allowed) >= LOG_SHOWN
