from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.costs.step_cost import StepCost, StepShape
from python_backend.engine.scheduling.budget import StepLimits, handed_out, step_limits, times_as_long

MOST = StepLimits(64, 2048)
GPU = StepCost(12, 0.12, 0.25, 0.05)


@st.composite
def some_limits(draw: st.DrawFn) -> StepLimits:
    batch = draw(st.integers(1, 512))
    return StepLimits(batch, draw(st.integers(batch, 8192)))


some_costs = st.builds(
    StepCost, st.floats(0, 100), st.floats(0, 5), st.floats(0, 5), st.floats(0, 5) | st.just(0.0)
)
some_targets = st.floats(0.1, 1000)


def test_steps_are_unlimited_without_an_objective_or_before_the_cost_is_known() -> None:
    assert step_limits(MOST, None, 50, 10, 1000) == MOST
    assert step_limits(MOST, GPU, None, 10, 1000) == MOST


def test_prompts_get_the_time_left_by_the_tightest_objective() -> None:
    limits = step_limits(MOST, GPU, 50, 20, 10_000)
    left_ms = 45 - 12 - 20 * 0.25 - 10 * 0.05
    assert limits.max_step_tokens == 20 + int(left_ms / 0.12)


def test_prompts_get_whole_steps_while_no_sequence_is_decoding() -> None:
    assert step_limits(MOST, GPU, 20, 0, 0).max_step_tokens == MOST.max_step_tokens


def test_no_more_sequences_join_than_keep_the_objective() -> None:
    limits = step_limits(MOST, GPU, 20, 10, 20_000)
    each_ms = 0.25 + 0.05 * 2
    assert limits.max_batch_size == int((18 - 12) / each_ms)


def test_an_objective_that_no_step_keeps_does_not_stop_the_engine() -> None:
    limits = step_limits(MOST, GPU, 5, 10, 10_000)
    assert limits == StepLimits(8, 10 + int(0.25 * 15 / 0.12))


def test_a_step_has_fewer_prompt_tokens_where_they_are_slow() -> None:
    assert step_limits(MOST, StepCost(10, 2, 3, 0), 100, 28, 0).max_step_tokens == 28 + 16


@given(some_limits(), some_costs, some_targets, st.integers(0, 512), st.integers(0, 10**6))
@settings(deadline=None)
def test_step_limits_are_always_valid_for_the_scheduler(
    most: StepLimits, cost: StepCost, target_ms: float, running: int, kv_tokens: int
) -> None:
    limits = step_limits(most, cost, target_ms, running, kv_tokens)
    assert 1 <= limits.max_batch_size <= most.max_batch_size
    assert limits.max_batch_size <= limits.max_step_tokens <= most.max_step_tokens


@given(some_limits(), some_costs, some_targets, st.integers(1, 512), st.integers(0, 10**6))
@settings(deadline=None)
def test_a_full_step_keeps_the_objective_unless_it_has_only_the_minimum_of_a_prompt(
    most: StepLimits, cost: StepCost, target_ms: float, running: int, kv_tokens: int
) -> None:
    limits = step_limits(most, cost, target_ms, running, kv_tokens)
    prompt_tokens = limits.max_step_tokens - running
    step_ms = cost.step_ms(StepShape(max(0, prompt_tokens), running, kv_tokens))
    least = prompt_tokens <= 64 or limits.max_step_tokens == limits.max_batch_size
    assert step_ms <= target_ms * (1 + 1e-9) or least


@given(some_limits(), some_costs, some_targets, st.integers(0, 512), st.integers(0, 10**6))
@settings(deadline=None)
def test_a_batch_above_the_minimum_keeps_the_objective(
    most: StepLimits, cost: StepCost, target_ms: float, running: int, kv_tokens: int
) -> None:
    size = step_limits(most, cost, target_ms, running, kv_tokens).max_batch_size
    mean_tokens = kv_tokens / running if running else 0
    step_ms = cost.step_ms(StepShape(0, size, math.floor(size * mean_tokens)))
    assert step_ms <= target_ms * (1 + 1e-9) or size <= max(1, math.ceil(most.max_batch_size / 8))


@given(some_limits(), some_costs, some_targets, st.floats(1, 4), st.integers(0, 512), st.integers(0, 10**6))
@settings(deadline=None)
def test_a_looser_objective_never_limits_more(
    most: StepLimits, cost: StepCost, target_ms: float, looser: float, running: int, kv_tokens: int
) -> None:
    tight = step_limits(most, cost, target_ms, running, kv_tokens)
    loose = step_limits(most, cost, looser * target_ms, running, kv_tokens)
    assert loose.max_batch_size >= tight.max_batch_size
    assert loose.max_step_tokens >= tight.max_step_tokens


def test_a_prompt_behind_a_long_context_gets_the_tokens_that_take_as_long_as_a_step_without() -> None:
    def tokens_of_a_step(context: int) -> int:
        return handed_out(200_000, 4096, 4096, lambda: False, times_as_long(context, 16_000))

    assert [tokens_of_a_step(context) for context in (0, 16_000, 32_000, 100_000)] == [4096, 4096, 2048, 512]


def test_a_prompt_behind_a_long_context_leaves_a_part_of_the_step_to_shorter_ones() -> None:
    assert handed_out(50_000, 4096, 4096, lambda: True, times=2.0) == 1536


@given(
    st.integers(1, 10**6),
    st.integers(-100, 8192),
    st.integers(1, 8192),
    st.booleans(),
    st.integers(0, 10**6),
    st.integers(1, 10**5) | st.none(),
)
def test_a_long_context_makes_chunks_shorter_and_never_stops_a_prompt(
    lacking: int, left: int, most: int, has_shorter: bool, context: int, even: int | None
) -> None:
    times = times_as_long(context, even)
    count = handed_out(lacking, left, most, lambda: has_shorter, times)
    short = handed_out(lacking, left, most, lambda: has_shorter)
    assert (count > 0) == (short > 0)
    assert 0 <= count <= short <= max(left, 0)
    assert count * times <= left or count <= 64
