from __future__ import annotations

from python_backend.costs.step_cost import StepCost, StepShape
from simulator.uneven_cost import UnevenStepCost

COST = UnevenStepCost(20.0, 5.0, 8.0, 10.0, (28.0, 41.0, 52.0, 45.0))


def test_a_step_takes_what_its_tokens_do_whosever_they_are_and_what_it_reads() -> None:
    assert COST.step_ms(StepShape(0, 3, 0)) == COST.step_ms(StepShape(2, 1, 0)) == 52.0
    assert COST.step_ms(StepShape(0, 4, 200)) == 47.0


def test_beyond_what_was_seen_each_token_takes_as_much() -> None:
    shape = StepShape(4, 1, 100)
    assert COST.step_ms(shape) == StepCost(20.0, 5.0, 8.0, 10.0).step_ms(shape) == 49.0
