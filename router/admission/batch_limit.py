"""How many rows of a batch model may be in flight so that 95 of 100 requests are answered in time.

Of the rows in flight some are computed, and the others are in the batch after that. A batch takes a fixed
time and so much for each row and token; so both together take two fixed times and all their rows, however
they are divided, and nobody who begins waits longer than that. A bound on what is in flight thus bounds the
time of each row, of those too whose batch others join later. What is ahead of a request when it comes says
nothing of these.

By how much real batches exceed that is learned as a factor, from how long requests took beside how many.
"""

from __future__ import annotations

from math import exp, log
from typing import TYPE_CHECKING

from python_backend.wire.tiers import Tier

if TYPE_CHECKING:
    from python_backend.costs.batch_cost import BatchCost
    from router.admission.capacity import Capacity

# One of a batch computed and one that waits.
_LEAST_ROWS = 2
_LEAST_ROW_MS = 1e-6
# So many of a hundred may take longer: fewer than an objective allows, as they come in bunches.
_LATE_PART = 0.04
_FIRST_FACTOR, _LEAST_FACTOR, _MOST_FACTOR = 1.3, 0.2, 5.0
# How far all requests of the bound together move the factor, in logarithms; at first it is a guess.
_STEP, _FIRST_STEP = 0.3, 1.2
# Requests beside fewer rows tell of the delay of the queue and the way there, not of batches.
_TELLING_PART = 0.5
# Of the objective; the rest is for those that wait for their turn.
_PART_IN_FLIGHT = 0.95
_FORGOTTEN_S = 60.0


def in_flight_s(cost: BatchCost, rows: float, tokens: float) -> float:
    """At most, until the last of so many rows in flight on one server is computed, by the usual times."""
    return (cost.base_ms + cost.batch_ms(rows, tokens)) / 1000


class BatchLimit:
    """Of one release."""

    def __init__(self) -> None:
        self.factor = _FIRST_FACTOR
        self._log = log(_FIRST_FACTOR)
        self._seen = 0.0  # in bounds
        self._patience_s: dict[Tier, tuple[float, float]] = {}
        self._row_tokens = 0.0

    def asked(self, tier: Tier, patience_s: float, rows: int, tokens: int, now_s: float) -> None:
        """A request came which has so much time."""
        self._patience_s[tier] = patience_s, now_s
        self._row_tokens += 0.02 * (tokens / max(rows, 1) - self._row_tokens)

    def rows(self, capacity: Capacity, now_s: float) -> int:
        """How many may be in flight on all servers together; the tightest objective of late decides."""
        cost, replicas = capacity.batch, capacity.replicas
        recent = [patience_s for patience_s, at_s in self._patience_s.values() if now_s - at_s < _FORGOTTEN_S]
        if cost is None or not recent or not replicas:
            return capacity.slots
        allowed_ms = 1000 * _PART_IN_FLIGHT * min(recent) / self.factor
        for_rows_ms = max(allowed_ms - 2 * cost.base_ms, 0.0)
        row_ms = max(cost.row_ms + cost.token_ms * self._row_tokens, _LEAST_ROW_MS)
        rows = max(int(for_rows_ms / row_ms), _LEAST_ROWS) * replicas
        return min(rows, capacity.slots)

    def late_s(self, capacity: Capacity, rows: int, tokens: int) -> float:
        """What 96 of 100 take no longer than, once begun, beside so many rows in all."""
        if capacity.batch is None:
            return 0.0
        replicas = max(capacity.replicas, 1)
        return self.factor * in_flight_s(capacity.batch, rows / replicas, tokens / replicas)

    def learn(self, capacity: Capacity, took_s: float, rows: int, tokens: int) -> None:
        """A request took so long from its beginning to its end, beside so many rows at most."""
        if capacity.batch is None:
            return
        is_late = took_s > self.late_s(capacity, rows, tokens)
        if rows < _TELLING_PART * capacity.slots:
            most = self.late_s(capacity, capacity.slots, tokens * capacity.slots // max(rows, 1))
            if took_s <= most:  # else it is late whatever it tells of: batches are slower than believed
                return
        step = max(_STEP, _FIRST_STEP / (1 + self._seen / 8)) / max(capacity.slots, 1)
        self._seen += 1 / max(capacity.slots, 1)
        moved = self._log + step * ((1 - _LATE_PART) if is_late else -_LATE_PART)
        self._log = min(max(moved, log(_LEAST_FACTOR)), log(_MOST_FACTOR))
        self.factor = exp(self._log)
