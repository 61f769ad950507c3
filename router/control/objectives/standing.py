"""An objective beside what was measured, and what that comes to."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from router.control.objectives.distribution import Distribution
from router.core.objective import Metric, metrics_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from python_backend.wire.tiers import Tier
    from router.core.manifest import Kind
    from router.core.objective import Objective

# Of fewer the slowest one alone would decide.
ENOUGH = 20
_WORTH_TELLING = 0.005


class Verdict(str, Enum):
    """How an objective is kept."""

    KEPT = "kept"
    MISSED = "missed"
    TOO_FEW = "too few to tell"
    NOT_MEASURED = "nothing measured"
    NO_OBJECTIVE = "no objective"


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one model and tier over the last minutes: counts by metric and bucket, and refusals."""

    counts: Mapping[Metric, Mapping[int, int]] = field(default_factory=dict)
    refused: int = 0

    @property
    def is_empty(self) -> bool:
        return not self.refused and not any(self.counts.values())


@dataclass(frozen=True, slots=True)
class Standing:
    """Of one model, tier and measure. `attained` is the share of the samples that kept the objective.

    `refused` requests were never dispatched, and so have no time to be measured.
    """

    model: str
    tier: Tier
    metric: Metric
    objective_s: float | None
    samples: int
    p50_s: float | None
    p95_s: float | None
    attained: float | None
    refused: int = 0

    @property
    def refused_share(self) -> float:
        """Of all that came."""
        return self.refused / (self.refused + self.samples) if self.refused else 0.0

    @property
    def verdict(self) -> Verdict:
        if self.objective_s is None:
            return Verdict.NO_OBJECTIVE
        if self.p95_s is None:
            return Verdict.NOT_MEASURED
        if self.samples < ENOUGH:
            return Verdict.TOO_FEW
        return Verdict.KEPT if self.p95_s <= self.objective_s else Verdict.MISSED

    @property
    def sentence(self) -> str:
        """The verdict, by how much, and at what price."""
        refused = f"; {self.refused_share:.0%} refused" if self.refused_share >= _WORTH_TELLING else ""
        return f"{self._verdict_in_words()}{refused}"

    def _verdict_in_words(self) -> str:
        if self.objective_s is None or self.p95_s is None:
            return self.verdict.value
        if self.verdict is Verdict.TOO_FEW:
            return f"{self.samples} of {ENOUGH} needed"
        ratio = self.p95_s / self.objective_s
        if ratio <= 1:
            return f"kept, {1 - ratio:.0%} to spare"
        return f"missed by {ratio - 1:.0%}" if ratio < 2 else f"missed {ratio:.1f}-fold"


def standing(objective: Objective, metric: Metric, measured: Distribution, refused: int = 0) -> Standing:
    limit_s = objective.limit_s(metric)
    found = measured.percentiles
    attained = None if limit_s is None else measured.within(limit_s)
    return Standing(
        objective.model,
        objective.tier,
        metric,
        limit_s,
        found.samples,
        found.p50_s,
        found.p95_s,
        attained,
        refused,
    )


def standings(kind: Kind | None, objective: Objective, figures: Figures) -> list[Standing]:
    """All that a model of this kind is measured by, and what else it has an objective for.

    A model that is no longer served has no kind. Refusals are reported once: with what a request waits for
    first.
    """
    own = () if kind is None else metrics_of(kind)
    chosen = [each for each in Metric if each in own or objective.limit_s(each) is not None]
    return [
        standing(
            objective,
            metric,
            Distribution(figures.counts.get(metric, {})),
            figures.refused if not number else 0,
        )
        for number, metric in enumerate(chosen)
    ]
