"""The life of a batch: which status follows which, and when.

validating -> in_progress -> finalizing -> completed
    |             |  |           |
    |             |  | (24 h)    +------> expired
    |             |  +-> finalizing
    +-> failed    |
    +-------------+-> cancelling -------> cancelled
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


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
    CHECKED = "the input is in order"
    REJECTED = "the input is not"
    ALL_ANSWERED = "no line is left"
    WINDOW_CLOSED = "there was no time for the rest"
    CANCEL_ASKED = "the owner wants no more of it"
    WRITTEN = "the output is there"


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
