"""The values that admission goes by: what a request wants, and what the releases of a model can give."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from python_backend.costs.batch_cost import BatchCost
    from python_backend.costs.step_cost import StepCost
    from python_backend.wire.tiers import Tier


class Progress(Protocol):
    """How far a request is; the router's record of it is one."""

    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Demand:
    """What one request wants. Times are on the clock that the dispatcher is told the time of.

    `prompt_tokens` are those that have to be computed, `max_tokens` the most that may be generated for all
    its sequences together (0 for models of fixed cost, whose `sequences` are rows). At `deadline_s` its first
    token, or its whole answer where the cost is fixed, has to be there. One that `is_strict` was set by the
    client: it is not moved for a prompt that takes longer than that even on an idle engine. `rows` are all
    that a model of fixed cost is to compute for it, where they are more than its places.
    """

    tenant: str
    tier: Tier
    prompt_tokens: int
    max_tokens: int
    sequences: int
    arrived_s: float
    deadline_s: float
    is_strict: bool = False
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the open replicas of a release can do, all together.

    `places` is how many sequences (or rows) may be under way; `kv_tokens` what the caches hold, None where
    that is not the limit. `holds_whole_answers`: a sequence takes the cache of all it may ever generate when
    it begins. `step_tokens` is what one step of one replica computes at most. Where neither cost is known
    nothing can be foretold, and requests are let in by places and cache alone. Where other routers use the
    same replicas, `own_places` and `own_kv_tokens` are what this one may take of them; None is all.
    """

    replicas: int
    places: int
    kv_tokens: int | None = None
    block_tokens: int = 1
    holds_whole_answers: bool = False
    step_tokens: int = 512
    step: StepCost | None = None
    batch: BatchCost | None = None
    own_places: int | None = None
    own_kv_tokens: int | None = None

    @property
    def places_here(self) -> int:
        return self.places if self.own_places is None else self.own_places

    @property
    def kv_tokens_here(self) -> int | None:
        return self.kv_tokens if self.own_kv_tokens is None else self.own_kv_tokens


class Reason(Enum):
    """Why a request was refused."""

    BUSY = "busy"  # its first token would come too late: it is refused at once
    TOO_LATE = "too_late"  # it has waited, and now its deadline cannot be met any more
    TOO_LARGE = "too_large"  # it does not fit, not even alone


@dataclass(frozen=True, slots=True)
class Refused:
    """`retry_after_s` is when it could be let in as far as that can be foretold; without jitter."""

    reason: Reason
    message: str
    retry_after_s: float | None = None
