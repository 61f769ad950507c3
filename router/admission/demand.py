"""What a request asks for, its entry in the queue of a release, and why it is refused."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from python_backend.wire.tiers import Tier


class Progress(Protocol):
    """How far a request is; the router's record of it is one."""

    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Need:
    """`sequences` is how many slots of a batch it takes: answers, or rows of a batch model.

    `rows` are all rows of a batch model, where they are more than are in flight at once.
    """

    prompt_tokens: int
    completion_tokens: int = 0
    sequences: int = 1
    rows: int = 0


@dataclass(slots=True)  # not frozen: one is made for each request, which would take three times as long
class Demand:
    """A need with who asks and by when. Times are on the clock of the dispatcher's caller.

    `prompt_tokens` are those to compute, `max_tokens` the most that may be generated for all sequences
    together (0 for batch models, whose `sequences` are rows). At `deadline_s` the first token is due, or the
    whole answer of a batch model. `is_strict`: the client set the deadline itself, so it is not moved for a
    prompt that takes longer than that even on an idle engine. `rows` as in `Need`.
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


class Reason(Enum):
    """Why a request was refused."""

    BUSY = "busy"  # its first token is predicted to come too late: refused at once
    TOO_LATE = "too_late"  # it timed out in the queue
    TOO_LARGE = "too_large"  # it does not fit, not even alone


@dataclass(frozen=True, slots=True)
class Refused:
    """`retry_after_s` is when it is predicted to be admitted, if that can be predicted; without jitter."""

    reason: Reason
    message: str
    retry_after_s: float | None = None


class EntryState(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


class Wait(IntEnum):
    """What a request had to wait for when it was offered: how well that can be predicted differs."""

    NONE = 0
    BEHIND_OTHERS = 1  # its tenant waits for nothing else: fair turns bring it on soon
    BEHIND_OWN = 2
    HELD_BACK = 3  # there is capacity, but its tenant has much, and leaves headroom to others


@dataclass(slots=True, eq=False)
class QueueEntry:
    """What a policy returns for a request that it does not refuse at once.

    `refusal` says why it was refused after it had waited. The forecasts predict its first token, in seconds
    after its arrival: the median, and the 90th percentile; None where there is no prediction. The rest is
    the policy's own accounting: exactly what is noted here is released when it ends.
    """

    demand: Demand
    progress: Progress
    state: EntryState = EntryState.WAITING
    refusal: Refused | None = None
    forecast_s: float | None = None
    forecast_late_s: float | None = None
    begun_s: float | None = None
    first_token_s: float | None = None
    offered_s: float = 0.0
    deadline_s: float = 0.0  # the demand's, or later where its prompt alone takes longer
    alone_s: float = 0.0  # what its first token takes on an idle engine
    service_s: float = 0.0  # what it takes once it begins, before learned corrections
    predicted_s: float = 0.0  # from the offer to the first token, before learned corrections
    wait: Wait = Wait.NONE
    weight: float = 0.0  # its tenant's, where slots are shared by tenants
    is_light: bool = False  # its tenant asks for little: others give way to it
    is_displacing: bool = False  # it began beside all that there is capacity for
    sequences: int = 0  # slots of the engine
    size: int = 0  # the same, or its share of the cache, in slots, where that is more
    kv_tokens: int = 0  # of the cache, reserved for it
    kv_spread: int = 0  # what it may take beyond that: nine of ten stay within both together
    cost_us: int = 0  # of engine time, as priced
    prompt_us: int = 0  # of that, what is certain when it begins
    remaining_us: int = 0  # of that, what is still to come
    prefill_tokens: int = 0  # still to be computed before its first token
    context_tokens: float = 0.0  # that each of its sequences reads for its first token
    charged_tokens: int = 0  # of its answer, charged to its tenant
    beside_rows: int = 0  # of a batch model, in flight when it began, its own included
    look_again_at: int = 0  # generated tokens at which its expected length is estimated again

    @property
    def is_running(self) -> bool:
        return self.state is EntryState.RUNNING

    @property
    def was_covered(self) -> bool | None:
        """Whether its first token came within the 90th percentile predicted."""
        if self.first_token_s is None or self.forecast_late_s is None:
            return None
        return self.first_token_s - self.demand.arrived_s <= self.forecast_late_s
