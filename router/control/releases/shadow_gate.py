"""Whether the answers of a canary that was a shadow are enough like those of the stable release."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from router.control.releases.canary import Decision, Verdict

if TYPE_CHECKING:
    from router.control.releases.plan import Plan


@dataclass(frozen=True, slots=True)
class ShadowAnswers:
    """All that were compared; one that failed is like nothing. `is_on`: more are to come."""

    count: int = 0
    likeness: float = 0.0
    is_on: bool = False

    @property
    def line(self) -> str:
        return f"{self.likeness:.1%} alike over {self.count:,} shadow answers" if self.count else ""


def judge_likeness(plan: Plan, answers: ShadowAnswers) -> Decision | None:
    """None where nothing is asked for, or the answers are as they should be."""
    if not plan.min_likeness:
        return None
    missing = plan.min_shadow_answers - answers.count
    if missing > 0:
        waits = f"waiting for {missing:,} more shadow answers"
        return Decision(Verdict.WAIT, waits if answers.is_on else f"{waits}, but it is no longer a shadow")
    if answers.likeness < plan.min_likeness:
        return Decision(
            Verdict.ROLL_BACK, f"answers: {answers.line}, at least {plan.min_likeness * 100:.4g}% required"
        )
    return None
