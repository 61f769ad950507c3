"""The time of one batch of a model of fixed cost: what it always takes, and what each row and token adds."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class BatchCost:
    """Milliseconds, for the slow ones of such batches: `spread` is their ratio to the usual (p95 to mean).

    `token_ms` is 0 for models of which no tokens are known: then `row_ms` is all that a row adds.
    """

    base_ms: float
    row_ms: float
    spread: float = 1.0
    token_ms: float = 0.0

    def batch_ms(self, rows: float, tokens: float = 0.0) -> float:
        return self.base_ms + self.row_ms * rows + self.token_ms * tokens

    def slow_batch_ms(self, rows: float, tokens: float = 0.0) -> float:
        return self.spread * self.batch_ms(rows, tokens)

    def for_rows_of(self, tokens: float) -> BatchCost:
        """The same by rows alone, where each has so many tokens."""
        return replace(self, row_ms=self.row_ms + self.token_ms * tokens, token_ms=0.0)


@dataclass(frozen=True, slots=True)
class LearnedBatchCost:
    """What was learned from so many batches; frozen as LearnedStepCost is."""

    cost: BatchCost
    samples: int
    error: float
    is_frozen: bool = False
