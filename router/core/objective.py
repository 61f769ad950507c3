"""A latency objective of one model and tier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import isfinite

from python_backend.wire.tiers import Tier
from router.core.manifest import Kind


class Metric(str, Enum):
    """Of text the first two; of models of fixed cost, which have no tokens, the last."""

    FIRST_TOKEN = "first_token"
    INTER_TOKEN = "inter_token"
    END_TO_END = "end_to_end"

    @property
    def field(self) -> str:
        """What it is called in an Objective, in the store and in the API."""
        return f"{self.value}_s"

    @property
    def words(self) -> str:
        return _WORDS[self]

    @property
    def option(self) -> str:
        return f"--{self.value.replace('_', '-')}"


_WORDS = {
    Metric.FIRST_TOKEN: "first token",
    Metric.INTER_TOKEN: "inter-token",
    Metric.END_TO_END: "end to end",
}


def metrics_of(kind: Kind) -> tuple[Metric, ...]:
    """Those that a model of this kind can have an objective for."""
    if kind is Kind.TEXT:
        return Metric.FIRST_TOKEN, Metric.INTER_TOKEN
    return (Metric.END_TO_END,)


# How long a request may wait for its first token where no objective says so: longer, and most clients of an
# interactive service have given up; what runs in the background is not waited for by anybody.
PATIENCE_S = {Tier.INTERACTIVE: 60.0, Tier.STANDARD: 60.0, Tier.BATCH: 600.0}
LEAST_S, MOST_S = 0.001, 3600.0


@dataclass(frozen=True, slots=True)
class Objective:
    """What 95 of 100 requests are to keep: to the first token, from token to token, or from end to end.

    The last is for models of fixed cost, which have no tokens. None: nothing is asked.
    """

    model: str
    tier: Tier
    first_token_s: float | None = None
    inter_token_s: float | None = None
    end_to_end_s: float | None = None
    # Worked out once, as every request asks. How long after its arrival a request of a text model is worth
    # beginning; of a batch model, until when its whole answer has to be there.
    patience_s: float = field(init=False, repr=False, compare=False)
    whole_patience_s: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        usual_s = PATIENCE_S[self.tier]
        first_s, whole_s = self.first_token_s, self.end_to_end_s
        object.__setattr__(self, "patience_s", usual_s if first_s is None else first_s)
        object.__setattr__(self, "whole_patience_s", usual_s if whole_s is None else whole_s)
        for metric in Metric:
            value = self.limit_s(metric)
            if value is not None and not (isfinite(value) and LEAST_S <= value <= MOST_S):
                raise ValueError(f"{metric.field}: expected {LEAST_S:g} to {MOST_S:g} seconds, got {value:g}")

    def limit_s(self, metric: Metric) -> float | None:
        found: float | None = getattr(self, metric.field)
        return found

    def wanting(self, limits_s: Mapping[Metric, float | None]) -> Objective:
        """The same, but for these."""
        now_s = {metric.field: limits_s.get(metric, self.limit_s(metric)) for metric in Metric}
        return Objective(self.model, self.tier, **now_s)

    @property
    def is_empty(self) -> bool:
        return self.first_token_s is None and self.inter_token_s is None and self.end_to_end_s is None
