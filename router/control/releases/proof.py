"""What a canary has shown of itself so far, in figures for the metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router.control.releases.next_steps import Situation

_MEASURES = ("first_token", "between_tokens")


@dataclass(frozen=True, slots=True)
class Proof:
    """`slowdowns` are ratios to the stable release by measure; what was not asked for is None. `gates` are
    how much of what a step takes is shown for and against the canary by gate, 1 being enough."""

    model: str
    version: int
    slowdowns: Mapping[str, float] = field(default_factory=dict)
    golden_failed: float | None = None  # the part of the prompts
    likeness: float | None = None
    gates: Mapping[str, tuple[float | None, float]] = field(default_factory=dict)


def proof_of(situation: Situation) -> Proof:
    rollout = situation.rollout
    before = rollout.figures.get("before_traffic", {})
    slowdowns = {measure: before[measure]["ratio"] for measure in _MEASURES if measure in before}
    was_asked = rollout.golden and rollout.progress.golden_step >= -1
    return Proof(
        rollout.model,
        rollout.canary,
        slowdowns,
        rollout.progress.golden_failed / len(rollout.golden) if was_asked else None,
        situation.shadow.likeness if situation.shadow.count else None,
        {each["gate"]: (each["within"], each["against"]) for each in rollout.figures.get("gates", ())},
    )
