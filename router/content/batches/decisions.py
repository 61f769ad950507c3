"""What to do with a batch: which status follows which, whose lines to take, which answers are final.

validating -> in_progress -> finalizing -> completed
    |             |  |           |
    |             |  | (24 h)    +------> expired
    |             |  +-> finalizing
    +-> failed    |
    +-------------+-> cancelling -------> cancelled
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

# How often a request is tried that the engine broke down over.
MAX_ATTEMPTS = 3
_BUDGET_WAIT_S = 60.0
_BUSY_WAIT_S = 1.0
_LONGEST_WAIT_S = 300.0


class Status(str, Enum):
    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def is_over(self) -> bool:
        return self in _OVER


_OVER = (Status.FAILED, Status.COMPLETED, Status.EXPIRED, Status.CANCELLED)
# Every line that will be answered has been; what is left is to write it down.
ENDING = (Status.FINALIZING, Status.CANCELLING)


class Event(Enum):
    CHECKED = "the input is valid"
    REJECTED = "the input is not valid"
    ALL_ANSWERED = "all lines are done"
    WINDOW_CLOSED = "the completion window has expired"
    CANCEL_ASKED = "the owner cancelled it"
    WRITTEN = "the output is written"


class TooLate(Exception):
    """What was asked for cannot be done to a batch in this status."""


@dataclass(frozen=True, slots=True)
class Life:
    """The status, and when each was reached; wall-clock seconds."""

    status: Status
    created_s: float
    expires_s: float
    in_progress_s: float | None = None
    finalizing_s: float | None = None
    completed_s: float | None = None
    failed_s: float | None = None
    expired_s: float | None = None
    cancelling_s: float | None = None
    cancelled_s: float | None = None


_NEXT = {
    (Status.VALIDATING, Event.CHECKED): Status.IN_PROGRESS,
    (Status.VALIDATING, Event.REJECTED): Status.FAILED,
    (Status.VALIDATING, Event.WINDOW_CLOSED): Status.FINALIZING,
    (Status.VALIDATING, Event.CANCEL_ASKED): Status.CANCELLING,
    (Status.IN_PROGRESS, Event.ALL_ANSWERED): Status.FINALIZING,
    (Status.IN_PROGRESS, Event.WINDOW_CLOSED): Status.FINALIZING,
    (Status.IN_PROGRESS, Event.CANCEL_ASKED): Status.CANCELLING,
    (Status.CANCELLING, Event.CANCEL_ASKED): Status.CANCELLING,
    (Status.CANCELLING, Event.WRITTEN): Status.CANCELLED,
    (Status.FINALIZING, Event.WRITTEN): Status.COMPLETED,
}


def after(life: Life, event: Event, now_s: float) -> Life:
    """What becomes of a batch; TooLate where the event means nothing any more.

    A batch whose window has closed is remembered as expired from that moment on, and called so once its
    output is written.
    """
    status = _NEXT.get((life.status, event))
    if status is None:
        raise TooLate(life.status.value)
    if status is life.status:
        return life
    if event is Event.WINDOW_CLOSED:
        return replace(life, status=status, finalizing_s=now_s, expired_s=now_s)
    if status is Status.COMPLETED and life.expired_s is not None:
        return replace(life, status=Status.EXPIRED)
    return replace(life, status=status, **{f"{status.value}_s": now_s})


@dataclass(frozen=True, slots=True)
class Backlog:
    """A batch with lines that nobody has taken, as far as is known."""

    batch_id: str
    organisation_id: str
    left: int


def shares(free: int, backlogs: Sequence[Backlog], under_way: Mapping[str, int]) -> dict[str, int]:
    """How many lines to take of which batch, the oldest first.

    Each place goes to the organisation that has the fewest: a large batch of one does not keep the small
    one of another waiting.
    """
    busy = dict(under_way)
    left = {backlog.batch_id: backlog.left for backlog in backlogs}
    taken: dict[str, int] = {}
    for _ in range(free):
        open_ones = [backlog for backlog in backlogs if left[backlog.batch_id] > 0]
        if not open_ones:
            break
        chosen = min(open_ones, key=lambda backlog: busy.get(backlog.organisation_id, 0))
        left[chosen.batch_id] -= 1
        taken[chosen.batch_id] = taken.get(chosen.batch_id, 0) + 1
        busy[chosen.organisation_id] = busy.get(chosen.organisation_id, 0) + 1
    return taken


@dataclass(frozen=True, slots=True)
class Again:
    """Not an answer to the request: nothing of this organisation is sent for so long, then it is once more.

    `is_attempt`: such failures are counted, for a request that breaks the engine must not do so for a day.
    """

    wait_s: float
    is_attempt: bool = False


def verdict(status: int, code: str | None, retry_after_s: float | None, attempts: int) -> Again | None:
    """None: this is what the output says of the line. `attempts` were made before this one."""
    if status == 429 and code == "insufficient_quota":
        return Again(_BUDGET_WAIT_S)
    if status == 429 and retry_after_s is None:
        return None  # it alone is more than the limit: waiting changes nothing
    if status == 503 and code == "engine_failed":
        return Again(_BUSY_WAIT_S, is_attempt=True) if attempts + 1 < MAX_ATTEMPTS else None
    if status in (429, 499, 503):
        wait_s = _BUSY_WAIT_S if retry_after_s is None else retry_after_s
        return Again(min(max(wait_s, 0.0), _LONGEST_WAIT_S))
    return None
