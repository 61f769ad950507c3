"""The place of one request at a release: waiting for its turn, running, or ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router.admission.demand import Demand, Progress, Refused


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
