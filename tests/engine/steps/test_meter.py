from __future__ import annotations

from python_backend.engine.report import SIZES
from python_backend.engine.request import GenerationRequest
from python_backend.engine.scheduling.plan import StepPlan
from python_backend.engine.sequence import Sequence
from python_backend.engine.steps.meter import StepMeter

MS = 1_000_000


def a_step(begun_ms: int, tokens: int = 1) -> StepPlan:
    plan = StepPlan(begun_ns=begun_ms * MS)
    sequence = Sequence(1, 1, GenerationRequest([1] * tokens, 10), 10)
    plan.add(sequence, tokens)
    return plan


def test_steps_that_overlap_are_not_counted_twice() -> None:
    meter = StepMeter()
    first, second = a_step(0), a_step(5)
    meter.over(first, 20 * MS)
    meter.over(second, 32 * MS)
    meter.over(a_step(100), 110 * MS)
    assert meter.busy_ns == (20 + 12 + 10) * MS


def test_a_step_that_follows_another_has_taken_all_the_time_since_that_was_over() -> None:
    meter = StepMeter()
    meter.over(a_step(0), 20 * MS)
    following = a_step(23)
    following.follows = True
    assert meter.over(following, 33 * MS) == 23 * MS
    assert (meter.last_ns, meter.last_whole_ns, meter.busy_ns) == (10 * MS, 13 * MS, 33 * MS)


def test_steps_are_counted_by_their_tokens_with_how_long_they_took() -> None:
    meter = StepMeter()
    for begun_ms, tokens in ((0, 1), (100, 1), (200, 10), (300, 257)):
        meter.over(a_step(begun_ms, tokens), (begun_ms + 20) * MS)
    counted = dict(zip(SIZES, zip(meter.sized_steps, meter.sized_ns, strict=True), strict=True))
    assert {size: each for size, each in counted.items() if each[0]} == {1: (2, 40 * MS), 12: (1, 20 * MS)}


def test_enough_steps_teach_their_cost_except_the_engines_first() -> None:
    meter = StepMeter()
    meter.over(a_step(0), 1000 * MS)
    for number in range(200):
        meter.over(a_step(1000 + 30 * number), (1000 + 30 * number + 20) * MS)
    assert meter.learned is not None
    assert meter.learned.samples == 200 - 7
    assert abs(meter.learned.cost.step_ms(a_step(0).shape) - 20) < 0.1


def test_only_some_short_steps_are_learned_from_and_more_at_first_and_with_prompts() -> None:
    def samples(tokens: int, steps: int) -> int:
        meter = StepMeter()
        for number in range(steps):
            meter.over(a_step(number, tokens), (number + 1) * MS)
        assert meter.learned is not None
        return meter.learned.samples

    assert samples(1, 1000) == 199
    assert samples(1, 4000) - samples(1, 3000) == 40
    assert samples(20, 4000) - samples(20, 3000) == 200


def test_a_step_without_chunks_teaches_nothing() -> None:
    meter = StepMeter()
    for number in range(100):
        meter.over(StepPlan(begun_ns=100 * number * MS), (100 * number + 50) * MS)
    assert meter.learned is None
