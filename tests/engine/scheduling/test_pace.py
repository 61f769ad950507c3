"""Batches that grow by trial, shrink where the objective is missed, and stay small beside light tenants."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.costs.step_cost import StepCost, StepShape
from python_backend.engine.scheduling.budget import StepLimits
from python_backend.engine.scheduling.pace import STRETCH, Pace, RunLimits, StepLoad
from tests.tiers import examples

MOST = StepLimits(64, 512)
CPU = StepCost(5.0, 1.2, 8.0, 0.05)
GPU = StepCost(8.0, 0.02, 0.05, 0.01)


def settled(pace: Pace, cost: StepCost, target_ms: float, slower: float = 1.0, steps: int = 400) -> RunLimits:
    """A full batch at every step, each `slower` than the cost that is known says."""
    for _ in range(steps):
        limits = pace.limits(cost, StepLoad(20, 2000, target_ms), 0.0)
        size = limits.steps.max_batch_size
        pace.observe(size, 0, slower * cost.step_ms(StepShape(0, size, 100 * size)), target_ms)
    return limits


def test_the_first_burst_does_not_fill_a_batch_of_unknown_cost() -> None:
    limits = Pace(MOST).limits(None, StepLoad(0, 0, 150.0), 0.0)
    assert limits.steps.max_batch_size == 4
    assert limits.batch == 8


def test_a_batch_grows_by_trial_until_a_step_is_no_longer_short() -> None:
    pace, sizes = Pace(MOST), []
    for _ in range(12):
        sizes.append(pace.limits(None, StepLoad(4, 400, 150.0), 0.0).steps.max_batch_size)
        pace.observe(sizes[-1], 0, CPU.step_ms(StepShape(0, sizes[-1], 0)), 150.0)
    assert sizes[:3] == [4, 7, 11]
    assert max(CPU.step_ms(StepShape(0, size, 0)) for size in sizes) <= 150.0
    assert sizes[-1] == sizes[-2]


def test_prompts_grow_by_trial_only_while_somebody_waits_for_the_next_token() -> None:
    pace = Pace(MOST)
    assert pace.limits(None, StepLoad(0, 0, 150.0), 0.0).steps.max_step_tokens == 512
    assert pace.limits(None, StepLoad(3, 300, 150.0), 0.0).steps.max_step_tokens == 3 + 64
    pace.observe(3, 64, 400.0, 150.0)
    assert pace.limits(None, StepLoad(3, 300, 150.0), 0.0).steps.max_step_tokens == 3 + 32


def test_what_is_known_from_before_needs_no_trial() -> None:
    limits = Pace(MOST, is_tried=True).limits(CPU, StepLoad(0, 0, 150.0), 0.0)
    assert limits.steps.max_batch_size == limits.batch == int((150 - 16 * 1.2 - 5) / 8)


def test_nothing_is_limited_without_an_objective() -> None:
    assert Pace(MOST).limits(CPU, StepLoad(10, 1000, None), 0.0) == RunLimits(MOST, None, 64)


def test_a_batch_shrinks_while_steps_miss_the_objective_and_some_of_those_that_run_are_too_many() -> None:
    pace = Pace(MOST, is_tried=True)
    usual = settled(pace, CPU, 150.0)
    slowed = settled(pace, CPU, 150.0, slower=1.7)
    assert slowed.steps.max_batch_size < 0.85 * usual.steps.max_batch_size
    assert slowed.most_running is not None
    assert usual.most_running is not None
    assert slowed.steps.max_batch_size <= slowed.most_running < usual.most_running
    assert settled(pace, CPU, 150.0) == usual


def test_beside_a_light_tenant_steps_take_a_few_times_what_it_would_alone() -> None:
    pace = Pace(MOST, is_tried=True)
    batch = pace.limits(CPU, StepLoad(12, 1200, 150.0, light=1), 10.0).steps.max_batch_size
    assert CPU.step_ms(StepShape(0, batch, 100 * batch)) <= STRETCH * CPU.step_ms(StepShape(0, 1, 100))
    assert pace.limits(CPU, StepLoad(12, 1200, 150.0), 14.0).steps.max_batch_size == batch
    assert pace.limits(CPU, StepLoad(12, 1200, 150.0), 16.0).steps.max_batch_size > 2 * batch


def test_what_steps_were_taken_to_cost_beside_a_light_tenant_is_not_remembered_with_it() -> None:
    pace, load = Pace(MOST, is_tried=True), StepLoad(12, 1200, 150.0)
    pace.limits(replace(CPU, base_ms=CPU.base_ms / 10), replace(load, light=1), 10.0)
    known = Pace(MOST, is_tried=True)
    known.limits(CPU, replace(load, light=1), 10.0)
    assert pace.limits(CPU, load, 12.0) == known.limits(CPU, load, 12.0)


def test_a_light_tenant_does_not_limit_an_engine_whose_steps_cost_the_same_whoever_is_in_them() -> None:
    limits = Pace(MOST, is_tried=True).limits(GPU, StepLoad(60, 6000, 40.0, light=1), 0.0)
    assert limits.steps.max_batch_size == 64


costs = st.builds(StepCost, st.floats(0, 50), st.floats(0, 5), st.floats(0, 20), st.floats(0, 5))
loads = st.builds(
    StepLoad, st.integers(0, 64), st.integers(0, 50_000), st.none() | st.floats(1, 500), st.integers(0, 8)
)
seen = st.tuples(st.integers(1, 64), st.integers(0, 512), st.floats(0.1, 2000))


@given(st.lists(st.tuples(st.none() | costs, loads, seen), max_size=30), st.booleans())
@settings(deadline=None, max_examples=examples(60))
def test_limits_are_always_valid_for_the_scheduler(
    course: list[tuple[StepCost | None, StepLoad, tuple[int, int, float]]], is_tried: bool
) -> None:
    pace = Pace(MOST, is_tried)
    for number, (cost, load, (sequences, tokens, took_ms)) in enumerate(course):
        limits = pace.limits(cost, load, float(number))
        assert 1 <= limits.steps.max_batch_size <= limits.steps.max_step_tokens <= MOST.max_step_tokens
        assert limits.steps.max_batch_size <= limits.batch <= MOST.max_batch_size
        assert limits.most_running is None or limits.most_running >= 1
        pace.observe(sequences, tokens, took_ms, load.target_ms)
