"""What came of one fault."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from loadtest.chaos.plan import FLOODING, Episode
from loadtest.chaos.sheet import is_turned_away, silence_s
from loadtest.results import RequestResult


@dataclass
class EpisodeResult:
    """Moments are seconds since its load began: when it struck, was over, and everything was at rest."""

    episode: Episode
    victim: str = ""
    struck_s: float = 0.0
    over_s: float = 0.0
    recovered_s: float = 0.0
    limit_s: float = 0.0  # by when it was to be at rest, after it was over
    requests: list[RequestResult] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    @property
    def outcomes(self) -> Counter[str]:
        return Counter(outcome_of(each) for each in self.requests)

    @property
    def rest_s(self) -> float:
        """From the end of the fault until all was at rest."""
        return max(0.0, self.recovered_s - self.over_s)

    @property
    def longest_silence_s(self) -> float:
        """In which somebody, but for who floods, heard nothing of an answer that came whole in the end."""
        others = (each for each in self.requests if each.is_answered and each.tenant != FLOODING)
        return max(map(silence_s, others), default=0.0)


def outcome_of(result: RequestResult) -> str:
    if result.is_answered:
        return "whole"
    if is_turned_away(result):
        return "refused"
    return "left" if result.has_left else "cut"
