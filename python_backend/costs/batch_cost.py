"""The time of one batch of a model of fixed cost: what it always takes, and what each row adds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchCost:
    """Milliseconds, for the slow ones of such batches: `spread` is their ratio to the usual (p95 to mean)."""

    base_ms: float
    row_ms: float
    spread: float = 1.0

    def batch_ms(self, rows: int) -> float:
        return self.base_ms + self.row_ms * rows

    def slow_batch_ms(self, rows: int) -> float:
        return self.spread * self.batch_ms(rows)


@dataclass(frozen=True, slots=True)
class LearnedBatchCost:
    """What was learned from so many batches; frozen as LearnedStepCost is."""

    cost: BatchCost
    samples: int
    error: float
    is_frozen: bool = False
