"""Whether a queue delay is changed now: down at once, up slowly, back when it was not worth it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from math import inf
from typing import TYPE_CHECKING

from router.control.tuning.queue_delay import LADDER_MS, shown_ms, snap_down

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.control.tuning.queue_delay import QueueDelay

# Fewer requests than this in a window say nothing of its slow ones, and nothing of batches.
FEW = 20
# Others have to join this many of a hundred batches, and a longer delay has to make them this much larger.
_LEAST_JOINED = 1.1
_LEAST_GROWTH = 1.1
_MOST_COST = 1.1
_MOST_MORE_FAILURES = 0.01
# A change is judged only by a window with about as much traffic.
_LIKE = 0.7


class Action(str, Enum):
    HOLD = "hold"
    RAISE = "raise"
    LOWER = "lower"
    HALVE = "halve"
    UNDO = "undo"
    RESTORE = "restore"  # as the model's own config has it
    ALIGN = "align"  # a server that was started anew gets what the others have
    FAIL = "fail"  # Triton refused what was decided


@dataclass(frozen=True, slots=True)
class Window:
    """What was measured of one Triton model over one window, on all servers together.

    `late_ms` is what the slowest 5 of 100 requests took, which are to take `limit_ms` at most; None where too
    few were seen. `mean_ms` is in Triton, `allowed_ms` the part of the objective that is this model's, and
    `copies` on how many servers it is.
    """

    seconds: float
    requests: int
    rows: int
    executions: int
    failures: int
    busy_ms: float
    mean_ms: float
    late_ms: float | None
    limit_ms: float
    allowed_ms: float
    copies: int = 1
    tokens: float = 0.0  # of all its rows; 0 where none are known

    @property
    def is_late(self) -> bool:
        return self.requests >= FEW and self.overrun_ms > 0

    @property
    def overrun_ms(self) -> float:
        """By how much it is late."""
        if self.late_ms is None:
            return self.mean_ms - self.allowed_ms
        return self.late_ms - self.limit_ms

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.seconds if self.seconds > 0 else 0.0

    @property
    def mean_batch(self) -> float:
        return self.rows / self.executions if self.executions else 0.0

    @property
    def row_tokens(self) -> float:
        return self.tokens / self.rows if self.rows else 0.0

    @property
    def joined(self) -> float:
        """Requests to a batch."""
        return self.requests / self.executions if self.executions else 0.0

    @property
    def row_ms(self) -> float:
        return self.busy_ms / self.rows if self.rows else 0.0

    @property
    def failed_share(self) -> float:
        return self.failures / max(1, self.requests + self.failures)


@dataclass(frozen=True, slots=True)
class Trial:
    """A longer delay, until the first window with it is over."""

    from_ms: float
    to_ms: float
    before: Window


@dataclass(frozen=True, slots=True)
class Course:
    """What is remembered of one Triton model from window to window.

    `wishes` are the delays that the last windows would have had, as long as all are on one side of the one
    in force. From `barred_ms` on, delays are not tried before `barred_until_s`.
    """

    wishes: tuple[float, ...] = ()
    raised_s: float = -inf
    trial: Trial | None = None
    barred_ms: float = inf
    barred_until_s: float = -inf

    def barring(self, delay_ms: float, until_s: float) -> Course:
        return replace(self, wishes=(), trial=None, barred_ms=delay_ms, barred_until_s=until_s)


@dataclass(frozen=True, slots=True)
class Pace:
    """With the usual windows of 30 s: a raise needs a minute and a half, five minutes lie between two."""

    windows: int = 3
    between_raises_s: float = 300.0
    barred_s: float = 1800.0

    @classmethod
    def of(cls, window_s: float) -> Pace:
        return cls(between_raises_s=10 * window_s, barred_s=60 * window_s)


@dataclass(frozen=True, slots=True)
class Decision:
    action: Action
    delay_ms: float
    sentence: str


@dataclass(frozen=True, slots=True)
class Moment:
    """What is in force, and when; `waits_for` is why nothing may be raised now, if anything."""

    delay_ms: float
    now_s: float
    pace: Pace = field(default_factory=Pace)
    waits_for: str = ""


def decide(moment: Moment, aim: QueueDelay, window: Window, course: Course) -> tuple[Decision, Course]:
    """Asymmetric on purpose: a delay too short costs the model's time, one too long costs everybody's.

    What is too long goes in one window: it is late, or nobody joins, or the traffic that it was for is gone.
    What is too short must have been so for three windows, and is tried: the window after is held against the
    one before.
    """
    verdict = _verdict(moment, window, course)
    if verdict is not None:
        return verdict
    settled = replace(course, trial=None)
    if aim.delay_ms < moment.delay_ms:
        return _lower(moment, aim, settled)
    if aim.delay_ms > moment.delay_ms:
        return _raise(moment, aim, window, settled)
    kept = Decision(Action.HOLD, moment.delay_ms, f"{aim.sentence}{_told_late(window)}")
    return kept, replace(settled, wishes=())


def _verdict(moment: Moment, window: Window, course: Course) -> tuple[Decision, Course] | None:
    """What the last window says against the delay that it had."""
    now_ms, trial = moment.delay_ms, course.trial
    if now_ms == 0:
        return None
    barred = course.barring(now_ms, moment.now_s + moment.pace.barred_s)
    alone = _told_alone(now_ms, window)
    if trial is not None and trial.to_ms == now_ms and (why := alone or _told_worse(trial.before, window)):
        return Decision(Action.UNDO, trial.from_ms, f"{why}: not tried again for a while"), barred
    if window.is_late:
        # Where requests would be late without any delay too, it is not to be held against this one.
        is_cause = window.overrun_ms <= now_ms
        after = barred if is_cause else replace(course, wishes=(), trial=None)
        return Decision(Action.HALVE, snap_down(now_ms / 2), _lateness(window)), after
    return (Decision(Action.LOWER, 0.0, alone), barred) if alone else None


def _told_alone(now_ms: float, window: Window) -> str:
    """That nobody joined, although somebody should have come within the delay; else nothing."""
    others = now_ms * window.requests_per_s / window.copies / 1000
    if window.executions < FEW or others < 1 or window.joined >= _LEAST_JOINED:
        return ""
    return f"{window.joined:.2f} requests per batch: hardly any request joins another within {now_ms:g} ms"


def _told_worse(before: Window, after: Window) -> str:
    """Why the window after a change is worse than the one before, or nothing."""
    if after.failed_share > before.failed_share + _MOST_MORE_FAILURES:
        return f"{after.failed_share:.1%} of the requests failed, {before.failed_share:.1%} before"
    if after.is_late:
        return _lateness(after)
    if after.requests_per_s < _LIKE * before.requests_per_s or after.executions < FEW:
        return ""
    if after.mean_batch < _LEAST_GROWTH * before.mean_batch:
        return f"{after.mean_batch:.2f} rows per batch, {before.mean_batch:.2f} before: no gain"
    if after.row_ms > _MOST_COST * before.row_ms:
        return f"a row takes {after.row_ms:.3g} ms of the model's time, {before.row_ms:.3g} before"
    return ""


def _lower(moment: Moment, aim: QueueDelay, course: Course) -> tuple[Decision, Course]:
    """At once where it is much too long; one step alone may be chance, as it may be upwards."""
    wishes = _wishes(course, aim, lambda wish: wish < moment.delay_ms)
    is_one_step = aim.delay_ms > 0 and _step(moment.delay_ms) - _step(aim.delay_ms) == 1
    if is_one_step and len(wishes) < moment.pace.windows:
        sentence = f"{aim.sentence}; one step down after {moment.pace.windows} such windows"
        return Decision(Action.HOLD, moment.delay_ms, sentence), replace(course, wishes=wishes)
    return Decision(Action.LOWER, aim.delay_ms, aim.sentence), replace(course, wishes=())


def _raise(moment: Moment, aim: QueueDelay, window: Window, course: Course) -> tuple[Decision, Course]:
    wishes = _wishes(course, aim, lambda wish: wish > moment.delay_ms)
    target_ms, now_s, pace = min(wishes), moment.now_s, moment.pace
    waits_for = ""
    if window.is_late:
        wishes, waits_for = (), _lateness(window)
    elif target_ms >= course.barred_ms and now_s < course.barred_until_s:
        waits_for = f"{course.barred_ms:g} ms failed, and is not tried again for a while"
    elif len(wishes) < pace.windows:
        waits_for = f"{len(wishes)} of {pace.windows} windows agree so far"
    elif now_s < course.raised_s + pace.between_raises_s:
        waits_for = f"the last change was less than {pace.between_raises_s:g} s ago"
    elif moment.waits_for:
        waits_for = moment.waits_for
    if waits_for:
        sentence = f"{aim.sentence}; {target_ms:g} ms is postponed: {waits_for}"
        return Decision(Action.HOLD, moment.delay_ms, sentence), replace(course, wishes=wishes)
    trial = Trial(moment.delay_ms, target_ms, window)
    return Decision(Action.RAISE, target_ms, aim.sentence), replace(
        course, wishes=(), raised_s=now_s, trial=trial
    )


def _wishes(course: Course, aim: QueueDelay, is_alike: Callable[[float], bool]) -> tuple[float, ...]:
    """The last ones; all on this side of what is in force, or they begin anew."""
    alike = course.wishes if all(is_alike(wish) for wish in course.wishes) else ()
    return (*alike, aim.delay_ms)[-8:]


def _step(delay_ms: float) -> int:
    return LADDER_MS.index(snap_down(delay_ms))


def _lateness(window: Window) -> str:
    if window.late_ms is None:
        took, allowed = shown_ms(window.mean_ms), shown_ms(window.allowed_ms)
        return f"requests take {took} on average, {allowed} allowed"
    return f"5% of requests take more than {shown_ms(window.late_ms)}, {shown_ms(window.limit_ms)} allowed"


def _told_late(window: Window) -> str:
    return f"; {_lateness(window)}, which this delay does not cause" if window.is_late else ""
