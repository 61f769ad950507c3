"""What to simulate: engines, objectives, admission, and how clients behave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from python_backend.wire.tiers import Tier
from router.core.objective import Objective
from simulator.engine import EngineShape

MODEL = "simulated"


class Admission(str, Enum):
    """Admission: the policies of the router's setting `admission`, a concurrency cap, and a yardstick."""

    OBJECTIVES = "objectives"
    FIRST_COME = "first-come"  # everything is passed on at once; the engine's own queue is the only one
    CAP = "cap"  # as many as the engines have slots, the others wait in order of arrival
    ORACLE = "oracle"  # as objectives, by one that knows how long each answer will be

    @property
    def shares_slots(self) -> bool:
        """Whether tenants have each their part of the engine."""
        return self in (Admission.OBJECTIVES, Admission.ORACLE)


@dataclass(frozen=True, slots=True)
class Retries:
    """What refused clients do: retry up to `times` times, `after_s` later (None: after `Retry-After`)."""

    times: int = 0
    after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """`overhead_s` is the time from the router's queue to the engine, and of its token back.

    `cap` is for all replicas together, 0 for as many as they have slots. `weights` and `slot_shares` name the
    tenants for which they are not 1. Without `tells_tiers` engines serve all tiers alike. `homes` are the
    replicas that the openings of a trace's prompts belong to, where that is known.
    """

    shape: EngineShape
    replicas: int = 1
    admission: Admission = Admission.OBJECTIVES
    objectives: Mapping[Tier, Objective] = field(default_factory=dict)
    overhead_s: float = 0.015
    cap: int = 0
    retries: Retries = Retries()
    tells_tiers: bool = True
    weights: Mapping[str, float] = field(default_factory=dict)
    slot_shares: Mapping[str, float] = field(default_factory=dict)
    homes: Sequence[int] = ()

    def objective(self, tier: Tier) -> Objective:
        return self.objectives.get(tier) or Objective(MODEL, tier)

    @property
    def inter_token_ms(self) -> dict[Tier, float | None]:
        return {
            tier: None if (target_s := self.objective(tier).inter_token_s) is None else 1000 * target_s
            for tier in Tier
        }
