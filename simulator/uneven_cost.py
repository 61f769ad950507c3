"""What steps take where a token more does not always cost the same, as with the tiles of CPU kernels."""

from __future__ import annotations

from dataclasses import dataclass

from python_backend.costs.step_cost import StepCost, StepShape


@dataclass(frozen=True, slots=True)
class UnevenStepCost(StepCost):
    """`tokens_ms` is what a step of one, two, three … tokens takes, whosever they are, but for the cache."""

    tokens_ms: tuple[float, ...] = ()

    def step_ms(self, shape: StepShape) -> float:
        place = int(shape.prefill_tokens + shape.decode_sequences) - 1
        if not 0 <= place < len(self.tokens_ms):
            return StepCost.step_ms(self, shape)
        return self.tokens_ms[place] + self.kv_kilotoken_ms * shape.kv_tokens / 1000
