"""The plan of a rollout, what its canary may do worse, and how far the rollout is."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How much worse than the stable release a canary may be before the evidence counts against it."""

    error_rate: float = 0.002
    latency_ratio: float = 1.25
    length_ratio: float = 1.5
    refusal_rate: float = 0.05
    golden_failures: int = 0
    error_margin: float = 0.02  # what a canary must be shown to stay below before it gets most of the traffic

    def __post_init__(self) -> None:
        for name in ("error_rate", "refusal_rate"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"the tolerance {name} is {getattr(self, name):g}; allowed: 0 to below 1")
        if not max(self.error_rate, 1e-4) <= self.error_margin < 1:
            raise ValueError(
                f"the tolerance error_margin is {self.error_margin:g}; allowed: error_rate to below 1"
            )
        for name in ("latency_ratio", "length_ratio"):
            if not 1 <= getattr(self, name) <= 1000:
                raise ValueError(f"the tolerance {name} is {getattr(self, name):g}; allowed: 1 to 1000")
        if self.golden_failures < 0:
            raise ValueError(f"the tolerance golden_failures is {self.golden_failures}; allowed: 0 and more")

    def accepting(self, latency_ratio: float) -> Tolerance:
        """The same for a canary that is meant to be slower."""
        return replace(self, latency_ratio=max(self.latency_ratio, latency_ratio))


class OnTimeout(str, Enum):
    """What becomes of a canary of which a step could not show in time that it is good enough."""

    HOLD = "hold"  # for as long again, then it is rolled back
    ROLL_BACK = "rollback"
    PROMOTE = "promote"  # as if it had been shown


DAY_S = 86_400.0
MOST_MIRRORED_PER_S = 100
MOST_REPLAYED_PER_S = 10
NO_PROMPT_LOG = "recorded prompts can only be replayed where prompts are logged: set [router] prompt_log_dir"


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of a rollout; one is over when the canary was shown in it to be within its tolerances, and
    it has lasted and been asked long enough. `time_limit_s` is that of each step."""

    weights: tuple[float, ...] = (0.01, 0.05, 0.25, 1.0)
    min_requests: int = 20
    min_duration_s: float = 60.0
    alpha: float = 0.01
    tolerance: Tolerance = field(default_factory=Tolerance)
    time_limit_s: float = DAY_S
    on_timeout: OnTimeout = OnTimeout.HOLD
    min_likeness: float = 0.0  # of the answers of a shadow; 0 where none are asked for
    min_shadow_answers: int = 50
    is_rehearsed: bool = True  # whether both releases are measured on the same prompts before any traffic
    # So many of the stable release's requests each router copies to the canary, at most, in a second.
    mirror_per_s: float = 0.0
    # So many recorded prompts a router asks both releases, at most, in a second in which nobody else asks.
    replay_per_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.weights or list(self.weights) != sorted(set(self.weights)) or not self.weights[0] > 0:
            raise ValueError("the steps of a rollout have to increase, starting above 0")
        if self.weights[-1] != 1.0:
            raise ValueError("the last step of a rollout has to be 1: all of the traffic")
        if not 0 < self.alpha < 1:
            raise ValueError(
                f"alpha is {self.alpha:g}, the probability of a false rollback; allowed: above 0 and below 1"
            )
        if self.min_requests < 0:
            raise ValueError(f"a step of a rollout needs {self.min_requests} requests; allowed: 0 and more")
        if not 0 < self.time_limit_s < math.inf:
            raise ValueError(f"the time limit of a step is {self.time_limit_s:g} s; allowed: above 0")
        if not 0 <= self.min_duration_s < math.inf:
            raise ValueError(f"a step of a rollout lasts {self.min_duration_s:g} s; allowed: 0 and more")
        if not 0 <= self.min_likeness <= 1:
            raise ValueError(f"the minimum likeness is {self.min_likeness:g}; allowed: 0 to 1")
        if not 0 <= self.mirror_per_s <= MOST_MIRRORED_PER_S:
            raise ValueError(
                f"{self.mirror_per_s:g} requests a second are mirrored; allowed: 0 to {MOST_MIRRORED_PER_S}"
            )
        if not 0 <= self.replay_per_s <= MOST_REPLAYED_PER_S:
            asked = f"{self.replay_per_s:g} recorded prompts a second are replayed"
            raise ValueError(f"{asked}; allowed: 0 to {MOST_REPLAYED_PER_S}")
        if self.min_shadow_answers < 1:
            raise ValueError(f"{self.min_shadow_answers} shadow answers are compared; allowed: 1 and more")


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a rollout stands; at step -1 its canary has got no request yet.

    `golden_step` is the last step for which the golden prompts were tried, and `golden_failed` how many of
    them failed there.
    """

    step: int = 0
    step_began_s: float = 0.0
    step_requests: int = 0
    paused: bool = False
    golden_step: int = -2
    golden_failed: int = 0
    golden_note: str = ""
    told_idle: bool = False
    told_held: bool = False
    is_rehearsed: bool = False
    known_deaths: int = 0  # of the canary, for which it was held
