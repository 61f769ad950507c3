"""How long requests wait for others to join their batch: from the objective, the arrivals and the cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from python_backend.costs.batch_cost import BatchCost

LADDER_MS = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
GUARD_MS = 2.0
# A model that is less busy than this without any batch has nothing to gain from waiting.
LEAST_LOAD = 0.1
# A batch has to save this part of the model's time.
LEAST_GAIN = 0.1
# A longer delay is worth telling of from here on: requests that it lets join, on average.
_TOLD_JOINING = 0.5
# Above this load a request finds a batch in execution, which it has to wait for.
_BUSY = 0.5
# Capacity in Triton's queue, in largest batches, at least: refusing is the router's job.
_QUEUED_BATCHES = 4


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What comes to one copy of a model."""

    requests_per_s: float
    rows_per_request: float = 1.0


@dataclass(frozen=True, slots=True)
class Room:
    """What 95 of 100 requests may take at most, how much of that they spend outside the model, and its size.

    `instances` of a model take batches from one queue.
    """

    objective_ms: float
    elsewhere_ms: float
    max_batch: int
    instances: int = 1


@dataclass(frozen=True, slots=True)
class Prospect:
    """What a delay brings and costs: `joining` requests come within it on average, a batch then has `rows`.

    `saved` is the part of the model's time that such batches save against requests one by one, `slow_ms` what
    the slowest 5 of 100 requests take.
    """

    delay_ms: float
    joining: float
    rows: float
    saved: float
    slow_ms: float

    def told(self, objective_ms: float) -> str:
        joining = f"{shown(self.joining)} more requests would join on average"
        batches = f"batches of {shown(self.rows)} rows would save {self.saved:.0%} of the compute time"
        verdict = "within the allowed" if self.slow_ms <= objective_ms else "above the allowed"
        slow = f"answers would take up to {shown_ms(self.slow_ms)}, {verdict} {shown_ms(objective_ms)}"
        return f"with {self.delay_ms:g} ms {joining}: {batches}, and {slow}"


@dataclass(frozen=True, slots=True)
class QueueDelay:
    """`delay_ms` is on the ladder. A batch is sent as soon as it has `batch` rows; 0: Triton's own choice.

    `longer` is what the next longer delay would bring that lets others join; None where there is none.
    """

    delay_ms: float
    batch: int
    queue_size: int
    sentence: str
    longer: Prospect | None = None


def choose_queue_delay(arrivals: Arrivals, room: Room, cost: BatchCost) -> QueueDelay:
    """With what a longer one would bring and cost."""
    chosen = _chosen(arrivals, room, cost)
    longer = [step for step in LADDER_MS if step > chosen.delay_ms]
    if not longer or arrivals.requests_per_s <= 0:
        return chosen
    is_telling = (step for step in longer if step * arrivals.requests_per_s / 1000 >= _TOLD_JOINING)
    return replace(chosen, longer=prospect(next(is_telling, longer[-1]), arrivals, room, cost))


def prospect(delay_ms: float, arrivals: Arrivals, room: Room, cost: BatchCost) -> Prospect:
    rows = max(1.0, arrivals.rows_per_request)
    joining = delay_ms * arrivals.requests_per_s / 1000
    joined = max(rows, min(float(room.max_batch), rows * (1 + joining)))
    alone_ms, together_ms = cost.batch_ms(rows) / rows, cost.batch_ms(joined) / joined
    saved = 1 - together_ms / alone_ms if alone_ms > 0 else 0.0
    load = arrivals.requests_per_s * rows / 1000 * together_ms / room.instances
    slow_ms = cost.slow_batch_ms(joined) * (2 if load > _BUSY else 1)
    return Prospect(delay_ms, joining, joined, saved, delay_ms + slow_ms + room.elsewhere_ms + GUARD_MS)


def _chosen(arrivals: Arrivals, room: Room, cost: BatchCost) -> QueueDelay:
    """The largest batch that gathers, and is computed, within the objective, and how long it gathers.

    A request that no other joins pays the delay for nothing. So it is 0 unless at least one more request is
    expected within it, the model is busy enough for batches to matter, and a batch is cheaper than its rows
    one by one. Beyond that the objective is the only bound: a batch gathered within the slack breaks no
    objective and saves compute time. Where a step of the ladder is too short for anybody to come, it is the
    next one that is not, if that is within the slack.
    """
    per_s, rows = arrivals.requests_per_s, max(1.0, arrivals.rows_per_request)
    if per_s <= 0:
        return _none(room, "no requests")
    heard = f"{per_s:.3g} requests/s"
    load = per_s * cost.batch_ms(ceil(rows)) / 1000 / room.instances
    if load < LEAST_LOAD:
        return _none(room, f"{heard} keep it {load:.1%} busy without batching: batching is not needed")
    gap_ms = 1000 / per_s
    least_ms = next((step for step in LADDER_MS if step >= gap_ms), None)
    if least_ms is None:
        return _none(room, f"{_told_gap(heard, gap_ms)}; the longest delay is {LADDER_MS[-1]:g} ms")
    batch = _largest_batch(arrivals, room, cost, least_ms)
    if batch is None:
        left_ms = _slack_ms(_least_batch(arrivals), arrivals, room, cost)
        if left_ms <= 0:
            return _none(
                room, f"{heard} leave no time to wait within the allowed {shown_ms(room.objective_ms)}"
            )
        allowed = f"the allowed {shown_ms(room.objective_ms)} leave {shown_ms(left_ms)} to wait"
        return _none(
            room, f"{_told_gap(heard, gap_ms)}: batching needs a delay of {least_ms:g} ms, but {allowed}"
        )
    delay_ms = _delay_ms(batch, arrivals, least_ms)
    joined = min(batch, rows * (1 + delay_ms * per_s / 1000))
    gain = 1 - (cost.batch_ms(round(joined)) / joined) / (cost.batch_ms(ceil(rows)) / ceil(rows))
    if gain < LEAST_GAIN:
        return _none(
            room, f"{heard}: batches of {joined:.0f} would save {max(0.0, gain):.0%} of the compute time"
        )
    takes, allowed = shown_ms(cost.slow_batch_ms(batch)), shown_ms(room.objective_ms)
    sentence = (
        f"{heard}: about {joined:.0f} rows gather in {delay_ms:g} ms, which saves {gain:.0%} of the compute "
        f"time; {batch} rows take {takes}, {allowed} allowed"
    )
    return QueueDelay(delay_ms, batch, _queue_size(batch, room, cost), sentence)


def snap_down(delay_ms: float) -> float:
    """The longest delay of the ladder that is not longer."""
    return max(step for step in LADDER_MS if step <= max(0.0, delay_ms))


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def shown_ms(value_ms: float) -> str:
    return f"{shown(value_ms)} ms"


def _none(room: Room, sentence: str) -> QueueDelay:
    return QueueDelay(0.0, 0, _QUEUED_BATCHES * room.max_batch, sentence)


def _told_gap(heard: str, gap_ms: float) -> str:
    return f"{heard}: one every {shown_ms(gap_ms)} on average"


def _least_batch(arrivals: Arrivals) -> int:
    """One that more than one request makes up."""
    return ceil(max(1.0, arrivals.rows_per_request)) + 1


def _largest_batch(arrivals: Arrivals, room: Room, cost: BatchCost, least_ms: float) -> int | None:
    """One that the objective leaves the time to gather."""
    for batch in range(room.max_batch, _least_batch(arrivals) - 1, -1):
        needed_ms = max(_gathering_ms(batch, arrivals), _delay_ms(batch, arrivals, least_ms))
        if needed_ms <= _slack_ms(batch, arrivals, room, cost):
            return batch
    return None


def _delay_ms(batch: int, arrivals: Arrivals, least_ms: float) -> float:
    """Until the batch has its rows, and no less than somebody needs to come."""
    return max(snap_down(_gathering_ms(batch, arrivals)), least_ms)


def _gathering_ms(batch: int, arrivals: Arrivals) -> float:
    """Until the batch has its rows: those of the first request are there at once."""
    rows = max(1.0, arrivals.rows_per_request)
    return 1000 * max(0.0, batch - rows) / (arrivals.requests_per_s * rows)


def _slack_ms(batch: int, arrivals: Arrivals, room: Room, cost: BatchCost) -> float:
    """What the objective leaves for waiting when batches of this size are computed."""
    takes_ms = cost.slow_batch_ms(batch)
    rows_per_ms = arrivals.requests_per_s * max(1.0, arrivals.rows_per_request) / 1000
    load = rows_per_ms * cost.batch_ms(batch) / batch / room.instances
    if load >= 1:  # more comes than is done: what waits is a full batch anyway
        return -1.0
    residual_ms = takes_ms if load > _BUSY else 0.0
    return room.objective_ms - takes_ms - residual_ms - room.elsewhere_ms - GUARD_MS


def _queue_size(batch: int, room: Room, cost: BatchCost) -> int:
    """Requests that could still be answered in time, and no fewer than fill a few batches."""
    in_time = ceil(room.instances * batch * room.objective_ms / max(cost.batch_ms(batch), 0.001))
    return max(in_time, _QUEUED_BATCHES * room.max_batch)
