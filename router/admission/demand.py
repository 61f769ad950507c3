"""The values that admission goes by: what a request wants, and what the releases of a model can give."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
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


@dataclass(frozen=True, slots=True)
class Need:
    """`sequences` is how many places in a batch it takes: answers, or rows of a model of fixed cost.

    `rows` are all of a model of fixed cost, where they are more than are under way at once.
    """

    prompt_tokens: int
    completion_tokens: int = 0
    sequences: int = 1
    rows: int = 0


class PlaceState(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


class Wait(IntEnum):
    """What a request had to wait for when it was offered: how well that can be foretold differs."""

    NONE = 0
    BEHIND_OTHERS = 1  # its tenant waits for nothing else: fair turns bring it on soon
    BEHIND_OWN = 2
    HELD_BACK = 3  # there is room, but its tenant has much, and leaves it to those who have less


@dataclass(slots=True, eq=False)
class Place:
    """What a policy gives for a request that it does not refuse at once.

    `refusal` says why it was refused after it had waited. The forecasts tell when its first token will be
    there, in seconds after its arrival: as it usually is, and what nine of ten keep; None where that cannot
    be foretold. The rest are the policy's own books: what is given back when it ends is what is written here.
    """

    demand: Demand
    progress: Progress
    state: PlaceState = PlaceState.WAITING
    refusal: Refused | None = None
    forecast_s: float | None = None
    forecast_late_s: float | None = None
    begun_s: float | None = None
    first_token_s: float | None = None
    offered_s: float = 0.0
    deadline_s: float = 0.0  # the demand's, or later where its prompt alone takes longer
    alone_s: float = 0.0  # what its first token takes on an idle engine
    foretold_s: float = 0.0  # from the offer, before anything that was learned
    wait: Wait = Wait.NONE
    sequences: int = 0  # of the engine's places, that it takes
    size: int = 0  # the same, or its part of the cache, in places, where that is more
    kv_tokens: int = 0  # of the cache, that are kept for it
    kv_spread: int = 0  # what it may come to beyond that: nine of ten stay within both together
    cost_us: int = 0  # of engine time, as it was priced
    remaining_us: int = 0  # of that, what is still to come
    prefill_tokens: int = 0  # that the engine has still to compute before its first token
    context_tokens: float = 0.0  # that each of its sequences reads for its first token
    charged_tokens: int = 0  # of its answer, that its tenant was charged for
    look_again_at: int = 0  # tokens generated at which its expected length is judged again

    @property
    def is_running(self) -> bool:
        return self.state is PlaceState.RUNNING

    @property
    def was_covered(self) -> bool | None:
        """Whether its first token came within the forecast that nine of ten keep."""
        if self.first_token_s is None or self.forecast_late_s is None:
            return None
        return self.first_token_s - self.demand.arrived_s <= self.forecast_late_s
