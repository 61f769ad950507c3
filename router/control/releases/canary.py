"""Whether a canary advances, is promoted or rolls back, decided from what was measured."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from router.control.releases.canary_checks import findings
from router.control.releases.gates import Shown
from router.control.releases.plan import OnTimeout
from router.core.lasting import lasting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.control.releases.arm_stats import Measured
    from router.control.releases.gates import Finding
    from router.control.releases.plan import Plan, Progress

# A canary that has not answered one of so many requests needs no statistics.
ALL_FAILED = 20
# A step without requests is reported as idle only after this.
_IDLE_AFTER_S = 60.0


class Verdict(str, Enum):
    WAIT = "wait"
    ADVANCE = "advance"
    PROMOTE = "promote"
    ROLL_BACK = "roll back"


@dataclass(frozen=True, slots=True)
class Decision:
    """One that waits may be `idle`, when requests do not come, or `held`, when its time is up."""

    verdict: Verdict
    reason: str
    is_idle: bool = False
    is_held: bool = False
    findings: tuple[Finding, ...] = field(default=(), compare=False)  # what it was made from


def decide(plan: Plan, progress: Progress, measured: Measured, now_s: float) -> Decision:
    """Rolls back once a gate's evidence against the canary reaches its limit, and goes on once all gates are
    shown to be kept; in between it waits."""
    found = tuple(findings(plan, measured))
    return replace(_decided(plan, progress, measured, found, now_s), findings=found)


def _decided(
    plan: Plan, progress: Progress, measured: Measured, found: Sequence[Finding], now_s: float
) -> Decision:
    objection = _objection(plan, progress, measured, found)
    if objection is not None:
        return Decision(Verdict.ROLL_BACK, objection)
    if progress.paused:
        return Decision(Verdict.WAIT, "paused")
    waits = _wait(plan, progress, measured, now_s) or _unknown(plan, progress, measured, found, now_s)
    if waits is not None:
        return waits
    if progress.step + 1 < len(plan.weights):
        after = plan.weights[progress.step + 1]
        return Decision(Verdict.ADVANCE, f"{_shown(found)}: on to {after * 100:.4g}% of the traffic")
    return Decision(Verdict.PROMOTE, f"{_shown(found)}, and no gate objects at 100% of the traffic")


def _shown(found: Sequence[Finding]) -> str:
    within = [each.gate.value for each in found if each.shown is Shown.WITHIN]
    return f"shown to be within its tolerances ({', '.join(within)})" if within else "no gate objects"


def golden_objection(plan: Plan, progress: Progress) -> str | None:
    allowed = plan.tolerance.golden_failures
    if progress.golden_failed <= allowed:
        return None
    note = f" ({progress.golden_note})" if progress.golden_note else ""
    return f"golden prompts: {progress.golden_failed} failed, {allowed} allowed{note}"


def _objection(plan: Plan, progress: Progress, measured: Measured, found: Sequence[Finding]) -> str | None:
    golden = golden_objection(plan, progress)
    if golden is not None:
        return golden
    counted = sum(canary.errors.total for canary, _ in measured.steps)
    if counted >= ALL_FAILED and counted == sum(canary.errors.hits for canary, _ in measured.steps):
        return f"errors: all of the canary's first {counted:,} requests failed"
    worst = max(found, key=lambda each: each.against)
    return worst.sentence() if worst.shown is Shown.OUTSIDE else None


def _unknown(
    plan: Plan, progress: Progress, measured: Measured, found: Sequence[Finding], now_s: float
) -> Decision | None:
    """None where everything is shown that has to be, or where the time limit stands in for it."""
    unknown = [each for each in found if each.shown is Shown.UNKNOWN]
    if not unknown:
        return None
    number, lasted_s = progress.step + 1, now_s - progress.step_began_s
    what = "; ".join(each.sentence() for each in unknown)
    limit_s = max(plan.time_limit_s, 2 * plan.min_duration_s)
    if lasted_s >= limit_s:
        late = f"step {number} timed out after {lasting(limit_s)}"
        reason = f"{late} without showing that the canary is good enough: {what}"
        if plan.on_timeout is OnTimeout.PROMOTE:
            return None
        if plan.on_timeout is OnTimeout.ROLL_BACK or lasted_s >= 2 * limit_s:
            return Decision(Verdict.ROLL_BACK, reason)
        left = lasting(2 * limit_s - lasted_s)
        return Decision(Verdict.WAIT, f"held, rolled back in {left} unless promoted: {reason}", is_held=True)
    needs = _more(measured, unknown, lasted_s)
    about = ", ".join(each.gate.value for each in unknown)
    return Decision(Verdict.WAIT, f"step {number} needs {needs} to decide: {about}")


def _more(measured: Measured, unknown: Sequence[Finding], lasted_s: float) -> str:
    """How many requests of the canary, and how long that takes at the rate of this step."""
    if any(each.more is None for each in unknown):
        return "more requests"
    most = max(each.more or 1 for each in unknown)
    answered = measured.steps[-1][0].errors.total
    time = f", {lasting(most * lasted_s / answered)} at this rate," if answered and lasted_s > 0 else ""
    return f"about {most:,} more requests of the canary{time}"


def _wait(plan: Plan, progress: Progress, measured: Measured, now_s: float) -> Decision | None:
    canary, stable = (each.errors.total for each in measured.steps[-1])
    missing = plan.min_requests - canary
    lasted_s = now_s - progress.step_began_s
    left_s = plan.min_duration_s - lasted_s
    number = progress.step + 1
    if missing > 0 and not canary and lasted_s >= max(_IDLE_AFTER_S, plan.min_duration_s):
        if not stable:
            reason = f"step {number} has had no request in {lasted_s:,.0f} s: it continues when requests come"
        else:
            reason = (
                f"the canary got none of the {stable:,} requests of step {number} in {lasted_s:,.0f} s: "
                "where the split is sticky, all current clients may be assigned to the stable release"
            )
        return Decision(Verdict.WAIT, reason, is_idle=True)
    if missing > 0 or left_s > 0:
        waits = [f"{missing:,} more requests"] * (missing > 0) + [f"{left_s:.0f} s more"] * (left_s > 0)
        return Decision(Verdict.WAIT, f"step {number} needs {' and '.join(waits)}")
    if plan.weights[progress.step] < 1 and not any(each.errors.total for _, each in measured.steps):
        reason = (
            f"the stable release got none of the {canary:,} requests of step {number}, so there is nothing "
            "to compare with: where the split is sticky, all current clients may be assigned to the canary"
        )
        return Decision(Verdict.WAIT, reason, is_idle=True)
    if progress.golden_step < progress.step:
        return Decision(Verdict.WAIT, f"step {number} is waiting for its golden prompts")
    return None
