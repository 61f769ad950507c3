"""What steps and batches cost here, learned from those that ran, and whether that is to be believed."""

from __future__ import annotations

from math import isfinite

from python_backend.costs.batch_cost import BatchCost, LearnedBatchCost
from python_backend.costs.least_squares import LeastSquares
from python_backend.costs.step_cost import LearnedStepCost, StepCost, StepShape

WARM_UP_SAMPLES = 32
MOST_ERROR = 0.25

# One; tokens of prompts; sequences; cached tokens that are read.
_STEP_SCALES = (1.0, 100.0, 10.0, 10_000.0)
_BATCH_SCALES = (1.0, 8.0, 200.0)  # one; rows; tokens
# Predictions are judged from here on: before, they are of somebody who knows nothing.
_FIRST_JUDGED_STEP = 8
_FIRST_JUDGED_BATCH = 2
# So many predictions as good as that are enough, too: where steps are long, the warm-up takes seconds.
_SURE_AFTER = 8
_SURE_ERROR = 0.15
_STEP_RATE = 0.05
_BATCH_RATE = 0.1  # of these there are fewer: one for each size in each window
# The mean of very many batches is no better than of so many: what windows differ by is not chance alone.
_MOST_WEIGHT = 16
# From the mean deviation of normal noise to its 95th percentile.
_DEVIATION_TO_P95 = 1.2533 * 1.645
# How slow the slow ones are is a guess where only sums are known, so it stays within these.
_LEAST_SPREAD = 1.1
_MOST_SPREAD = 3.0


class StepLearner:
    """Learns what the steps of one engine cost."""

    def __init__(self, recalled: LearnedStepCost | None = None) -> None:
        self._judged = _Judged(_STEP_SCALES, _FIRST_JUDGED_STEP, _STEP_RATE, WARM_UP_SAMPLES)
        if recalled is not None:
            cost = recalled.cost
            tokens_ms = (cost.prefill_token_ms, cost.decode_sequence_ms, cost.kv_kilotoken_ms / 1000)
            self._judged.recall((cost.base_ms, *tokens_ms), max(recalled.samples, WARM_UP_SAMPLES))

    def observe(self, shape: StepShape, took_ms: float) -> None:
        """A time that is no positive number tells nothing."""
        self._judged.observe(_inputs(shape), took_ms, 1.0)

    def begin_with(self, shape: StepShape, took_ms: float) -> None:
        """Of a step that says nothing of others: learned from, and not counted among those that do."""
        if isfinite(took_ms) and took_ms > 0.0:
            self._judged.fit.observe(_inputs(shape), took_ms)
            self._judged.fit.samples = 0

    @property
    def learned(self) -> LearnedStepCost | None:
        """None while there were too few steps to tell."""
        judged = self._judged
        if not judged.is_warm:
            return None
        base_ms, prefill_token_ms, decode_sequence_ms, kv_token_ms = judged.coefficients
        cost = StepCost(base_ms, prefill_token_ms, decode_sequence_ms, 1000 * kv_token_ms)
        return LearnedStepCost(cost, judged.fit.samples, judged.error, judged.is_frozen)


def _inputs(shape: StepShape) -> tuple[float, ...]:
    return 1.0, float(shape.prefill_tokens), float(shape.decode_sequences), float(shape.kv_tokens)


class BatchLearner:
    """Learns what the batches of one model of fixed cost take."""

    def __init__(self) -> None:
        self._judged = _Judged(_BATCH_SCALES, _FIRST_JUDGED_BATCH, _BATCH_RATE, _FIRST_JUDGED_BATCH + 1)
        self._batches = 0

    def observe(self, rows: int, took_ms: float, count: int = 1, tokens: float = 0.0) -> None:
        """`took_ms` is the mean of `count` batches of so many rows, and of so many tokens on average.

        As the cost is a sum, the mean time of batches is the time of their mean: nothing has to be known of
        single ones.
        """
        inputs, weight = (1.0, float(rows), tokens), float(min(count, _MOST_WEIGHT))
        if count > 0 and self._judged.observe(inputs, took_ms, weight):
            self._batches += count

    @property
    def learned(self) -> LearnedBatchCost | None:
        """None while there were too few batches to tell."""
        judged = self._judged
        if not judged.is_warm or self._batches < WARM_UP_SAMPLES:
            return None
        base_ms, row_ms, token_ms = judged.coefficients
        spread = 1.0 + _DEVIATION_TO_P95 * judged.fit.residual
        spread = max(_LEAST_SPREAD, min(spread, _MOST_SPREAD))
        cost = BatchCost(base_ms, row_ms, spread, token_ms)
        return LearnedBatchCost(cost, self._batches, judged.error, judged.is_frozen)


class _Judged:
    """Coefficients as they are learned, or the last good ones while they are wrong.

    Each measurement is predicted before it is learned from. When that goes wrong by more than a quarter the
    coefficients freeze; learning goes on, and they thaw when it has caught up. Where none were good ever,
    they are what was learned last, and count as frozen.
    """

    def __init__(self, scales: tuple[float, ...], first_judged: int, rate: float, warm_up: int) -> None:
        self.fit = LeastSquares(scales)
        self.error = 0.0
        self.is_frozen = False
        self.is_warm = False
        self.coefficients: tuple[float, ...] = ()
        self._first_judged = first_judged
        self._rate = rate
        self._warm_up = warm_up
        self._judgements = 0
        self._was_good = False

    def recall(self, coefficients: tuple[float, ...], samples: int) -> None:
        """They were good in a run before."""
        self.fit.recall(coefficients, samples)
        self.coefficients = coefficients
        self.is_warm = self._was_good = True

    def observe(self, inputs: tuple[float, ...], took_ms: float, weight: float) -> bool:
        """Returns whether it was anything to learn from."""
        if not (isfinite(took_ms) and took_ms > 0.0):
            return False
        if self.fit.samples >= self._first_judged:
            self._judge(self.fit.predict(inputs), took_ms)
        self.fit.observe(inputs, took_ms, weight)
        is_sure = self._judgements >= _SURE_AFTER and self.error <= _SURE_ERROR
        self.is_warm |= self.fit.samples >= self._warm_up or is_sure
        if self.is_warm:
            self.is_frozen = self.error > MOST_ERROR
            self._was_good |= not self.is_frozen
        if not (self.is_frozen and self._was_good):
            self.coefficients = self.fit.coefficients
        return True

    def _judge(self, predicted_ms: float, took_ms: float) -> None:
        self._judgements += 1
        # No prediction is worse than none at all; and of the first ones it is the plain mean.
        error = min(abs(predicted_ms - took_ms) / took_ms, 1.0)
        self.error += max(self._rate, 1.0 / self._judgements) * (error - self.error)
