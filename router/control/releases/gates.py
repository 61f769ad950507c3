"""The gates that a canary is held against, and what each of them has found."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

# With how much confidence a canary is shown to be within its tolerances. An error rate that is above what is
# allowed is found by the evidence against it; this is only about not having looked long enough.
LOG_SHOWN = math.log(100)
LOG_SHOWN_RATE = math.log(20)


class Gate(str, Enum):
    ERRORS = "errors"
    FIRST_TOKEN = "time to first token"
    BETWEEN_TOKENS = "inter-token latency"
    LENGTH_UP = "longer answers"
    LENGTH_DOWN = "shorter answers"
    REFUSALS = "refusals"
    FIRST_TOKEN_OBJECTIVE = "objective for the first token"
    BETWEEN_TOKENS_OBJECTIVE = "objective between tokens"


class Shown(str, Enum):
    WITHIN = "within"
    OUTSIDE = "outside"
    UNKNOWN = "not yet known"
    NOTHING = "nothing measured"


@dataclass(frozen=True, slots=True)
class Finding:
    """One gate. `against` and `within` are how much of the evidence that it takes is there, 1 being enough to
    roll back or to pass; `more` is how many requests of the canary it would still take to pass, where that
    can be told."""

    gate: Gate
    figures: str
    against: float = 0.0
    within: float | None = None  # None where nothing has to be shown
    more: int | None = None
    allowed: str = ""

    @property
    def shown(self) -> Shown:
        if self.against >= 1:
            return Shown.OUTSIDE
        if self.within is None:
            return Shown.NOTHING
        return Shown.WITHIN if self.within >= 1 else Shown.UNKNOWN

    def sentence(self) -> str:
        return f"{self.gate.value}: {self.figures}"
