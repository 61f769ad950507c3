"""What a canary is held against, gate by gate: what is shown for it, what against it, and in which words."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from router.control.releases.gates import Gate
from router.control.releases.rate_checks import check_objective, check_rate
from router.control.releases.shift_checks import check_latency, check_lengths, latency_bounds, length_bounds

if TYPE_CHECKING:
    from router.control.releases.arm_stats import Measured
    from router.control.releases.gates import Finding
    from router.control.releases.plan import Plan

# While little is known of the stable release it is not presumed to fail more often than that.
_MOST_PRESUMED_ERRORS = 0.1
_MOST_LOOSE = 3
# With all of the traffic a canary stays as it was within so many times what it may be above the stable one.
MARGIN_ALONE = 2
# Half of the probability of a false rollback is for errors, the rest is for the other gates.
_SHARES = 2 * (len(Gate) - 1)


def is_fair(plan: Plan, step: int) -> bool:
    """Whether latencies of both arms can be compared within this step: an arm with most of the traffic has
    more to do than the other."""
    weight = plan.weights[step]
    return weight <= 0.5 or (weight < 1 and plan.weights[0] > 0.5)


def looseness(plan: Plan, step: int) -> int:
    """How much less than all has to be shown in this step: the more traffic comes next, the more."""
    last = max((number for number in range(len(plan.weights)) if is_fair(plan, number)), default=0)
    return min(max(last - step, 0), _MOST_LOOSE)


def is_alone(plan: Plan, step: int) -> bool:
    """Whether the canary has all of the traffic, after steps in which it had somebody beside it."""
    return step > 0 and plan.weights[step] == 1


def findings(plan: Plan, measured: Measured) -> list[Finding]:
    """Every gate, whatever it says.

    All steps count, each against the stable release of the same step: with a share that changes, a bad hour
    of both arms would look like the canary's own. A step with all of the traffic has nobody to compare with.
    What was shown before it is shown for good, or the rollout would not be there; it is not asked for again,
    since no request could bring more of it. What has to be shown there is that the canary stays as it was,
    with an allowance for how well that is known, and for latencies, which depend on the load, a large one.
    """
    tolerance, steps, step = plan.tolerance, measured.steps, len(measured.steps) - 1
    loose, limit = looseness(plan, step), math.log(_SHARES / plan.alpha)
    alone = is_alone(plan, step)
    margins = MARGIN_ALONE if alone else 2**loose
    fair = [is_fair(plan, number) for number in range(len(steps))]
    of_times = latency_bounds(tolerance.latency_ratio, limit, 1 + loose, is_alone=step > 0 and not fair[step])
    of_lengths = length_bounds(tolerance.length_ratio, limit, 1 + loose, is_alone=alone)
    found = [
        check_rate(
            Gate.ERRORS,
            [(canary.errors, stable.errors) for canary, stable in steps],
            (tolerance.error_rate, tolerance.error_margin * margins),
            math.log(2 / plan.alpha),
            is_alone=alone,
            presumed=_MOST_PRESUMED_ERRORS,
            past=measured.past,
        ),
        check_rate(
            Gate.REFUSALS,
            [(canary.refusals, stable.refusals) for canary, stable in steps],
            (tolerance.refusal_rate, 2 * tolerance.refusal_rate * margins),
            limit,
            is_alone=alone,
        ),
        check_latency(Gate.FIRST_TOKEN, steps, fair, of_times, "first_token"),
        check_latency(Gate.BETWEEN_TOKENS, steps, fair, of_times, "between_tokens"),
        *check_lengths(steps, [not is_alone(plan, number) for number in range(len(steps))], of_lengths),
        check_objective(
            Gate.FIRST_TOKEN_OBJECTIVE, [(one.late_first, two.late_first) for one, two in steps], limit
        ),
        check_objective(
            Gate.BETWEEN_TOKENS_OBJECTIVE, [(one.late_between, two.late_between) for one, two in steps], limit
        ),
    ]
    if plan.weights == (1.0,):  # asked for, so there is nothing that it could be shown beside
        return [replace(each, within=None) for each in found]
    return found
