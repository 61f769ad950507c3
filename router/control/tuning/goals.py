"""The objectives that a Triton model has to meet, and what was measured of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from python_backend.wire.tiers import Tier
from router.control.tuning.ladder import FEW, Window
from router.control.tuning.queue_delay import Arrivals, QueueDelay, Room, choose_queue_delay
from router.core.manifest import Kind
from router.core.objective import Metric

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.control.objectives.distribution import Percentiles
    from router.control.tuning.ladder import Course
    from router.control.tuning.subject import Subject
    from router.core.manifest import Manifest
    from router.core.objective import Objective

    ObjectiveOf = Callable[[str, Tier], Objective]  # an empty one where none is set

# A step before the model itself may take this part of what the model has until its first token or its end.
_SHARE_OF_A_STEP = 0.1
# From the usual to the slow ones, of what requests spend on their way.
_SLOW = 2.0


class Monitor(Protocol):
    def window(self, model: str, tier: Tier, metric: Metric, last_s: float) -> Percentiles:
        """What this router has measured over the last `last_s` seconds."""


@dataclass(frozen=True, slots=True)
class Goal:
    """One objective of the model: `limit_ms` is for the model as a whole."""

    tier: Tier
    metric: Metric
    limit_ms: float


def goals_of(manifest: Manifest, objective_of: ObjectiveOf) -> list[Goal]:
    """The objectives that a queue delay counts for."""
    metric = Metric.FIRST_TOKEN if manifest.kind is Kind.TEXT else Metric.END_TO_END
    limits = {tier: getattr(objective_of(manifest.model, tier), metric.field) for tier in Tier}
    return [Goal(tier, metric, 1000 * limit) for tier, limit in limits.items() if limit is not None]


def allowed_ms(subject: Subject, goals: list[Goal]) -> float:
    share = 1.0 if subject.is_entry else _SHARE_OF_A_STEP
    return share * min(goal.limit_ms for goal in goals)


def measured(
    subject: Subject, goals: list[Goal], monitor: Monitor, now_s: float, window_s: float
) -> tuple[Window, float]:
    """The window that is over now, and what slow requests spent outside of Triton."""
    totals = subject.window
    seen = [(goal, _look(subject.manifest.model, goal, monitor, window_s)) for goal in goals]
    enough = [
        (goal, found.p50_s * 1000, found.p95_s * 1000)
        for goal, found in seen
        if found.samples >= FEW and found.p50_s is not None and found.p95_s is not None
    ]
    worst = max(enough, key=lambda each: each[2] / each[0].limit_ms, default=None)
    window = Window(
        max(now_s - subject.window_began_s, 1e-3),
        totals.requests,
        totals.rows,
        totals.executions,
        totals.failures,
        totals.busy_ms,
        totals.mean_ms,
        None if worst is None else worst[2],
        goals[0].limit_ms if worst is None else worst[0].limit_ms,
        allowed_ms(subject, goals),
        max(1, len(subject.batched)),
        subject.window_tokens,
    )
    if not (subject.is_entry and enough):
        return window, 0.0
    usual_ms = min(p50_ms for _, p50_ms, _ in enough)
    return window, _SLOW * max(0.0, usual_ms - totals.mean_ms)


def aim_of(subject: Subject, goals: list[Goal], window: Window, elsewhere_ms: float) -> QueueDelay:
    """Which delay would be right for traffic like this window's; each server has a queue of its own."""
    learned = subject.learner.learned
    if learned is None:
        if window.requests < FEW:
            return QueueDelay(0.0, 0, 0, "too few requests")
        return QueueDelay(subject.delay_ms, 0, 0, "the cost of its batches is not known yet")
    batched = next(iter(subject.batched.values()))
    rows_per_request = window.rows / window.requests if window.requests else 1.0
    arrivals = Arrivals(window.requests_per_s / len(subject.batched), rows_per_request)
    room = Room(allowed_ms(subject, goals), elsewhere_ms, batched.max_batch, batched.instances)
    return choose_queue_delay(arrivals, room, learned.cost.for_rows_of(window.row_tokens))


def _look(model: str, goal: Goal, monitor: Monitor, window_s: float) -> Percentiles:
    return monitor.window(model, goal.tier, goal.metric, window_s)


def detail_of(
    subject: Subject, window: Window | None, aim: QueueDelay | None, course: Course
) -> dict[str, Any]:
    """For people: what is in force, what was measured, what is believed of the model."""
    found: dict[str, Any] = {
        "delay_ms": subject.delay_ms,
        "servers": {name: each.queueing.delay_ms for name, each in sorted(subject.batched.items())},
        "on_trial": course.trial is not None,
    }
    for each in subject.batched.values():
        found["preferred_batch"] = list(each.queueing.preferred)
        found["queue_size"] = each.queueing.queue_size
        found["max_batch"] = each.max_batch
    if window is not None:
        found |= {
            "requests_per_s": round(window.requests_per_s, 2),
            "mean_batch": round(window.mean_batch, 2),
            "row_tokens": round(window.row_tokens, 1),
            "failures": window.failures,
            "mean_ms": round(window.mean_ms, 2),
            "p95_ms": None if window.late_ms is None else round(window.late_ms, 2),
            "objective_ms": window.limit_ms,
            "allowed_ms": window.allowed_ms,
        }
    if aim is not None:
        found["aim_ms"] = aim.delay_ms
        if aim.longer is not None and window is not None:
            found["longer"] = {**asdict(aim.longer), "sentence": aim.longer.told(window.allowed_ms)}
    if (learned := subject.learner.learned) is not None:
        found["cost"] = {
            "base_ms": round(learned.cost.base_ms, 3),
            "row_ms": round(learned.cost.row_ms, 4),
            "token_ms": round(learned.cost.token_ms, 5),
            "batches": learned.samples,
            "error": round(learned.error, 3),
            "is_frozen": learned.is_frozen,
        }
    return found
