"""What is measured of requests, and may have an objective."""

from __future__ import annotations

from enum import Enum

from router.releases.manifest import Kind


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
