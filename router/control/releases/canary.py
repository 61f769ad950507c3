"""Whether a canary advances, is promoted or rolls back, decided from what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from router.control.releases.canary_checks import findings

if TYPE_CHECKING:
    from router.control.releases.arm_stats import Measured
    from router.control.releases.canary_checks import Finding
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
    verdict: Verdict
    reason: str
    is_idle: bool = False  # it waits for requests that do not come


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
            reason = f"step {number} has had no request in {lasted_s:,.0f} s: it continues when requests come"
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
