from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.costs.batch_cost import BatchCost, LearnedBatchCost
from python_backend.costs.learners import MOST_ERROR, WARM_UP_SAMPLES, BatchLearner, StepLearner
from python_backend.costs.step_cost import LearnedStepCost, StepCost, StepShape
from tests.costs.workload import mean_error, slower, some_steps, took_ms

# An engine on a GPU, one on two cores, a tiny model: what they have in common is only the shape of the sum.
COSTS = [StepCost(12, 0.12, 0.25, 0.3), StepCost(3, 1.5, 2.0, 0.0), StepCost(0.1, 0.001, 0.002, 0.001)]


def learned_steps(learner: StepLearner) -> LearnedStepCost:
    assert learner.learned is not None
    return learner.learned


def cost_of(learner: StepLearner) -> StepCost:
    return learned_steps(learner).cost


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("seed", range(3))
def test_q5_the_cost_is_known_after_some_hundred_steps_and_again_after_a_slowdown(
    cost: StepCost, seed: int
) -> None:
    chance, learner = random.Random(seed), StepLearner()
    others = some_steps(random.Random(seed + 100), 500)
    steps = some_steps(chance, 1500)
    for shape in steps[:300]:
        learner.observe(shape, took_ms(chance, cost, shape))
    assert mean_error(cost_of(learner), cost, others) <= 0.08
    for shape in steps[300:1000]:
        learner.observe(shape, took_ms(chance, cost, shape))
    assert mean_error(cost_of(learner), cost, others) <= 0.05
    for shape in steps[1000:]:
        learner.observe(shape, took_ms(chance, slower(cost, 2), shape))
    assert mean_error(cost_of(learner), slower(cost, 2), others) <= 0.10
    assert not learned_steps(learner).is_frozen


@pytest.mark.parametrize(("noise", "enough"), [(0.0, WARM_UP_SAMPLES // 2), (0.6, WARM_UP_SAMPLES)])
def test_too_few_steps_teach_nothing_and_fewer_are_enough_where_they_are_foreseen(
    noise: float, enough: int
) -> None:
    learner, chance = StepLearner(), random.Random(1)
    for shape in some_steps(chance, enough):
        assert learner.learned is None
        learner.observe(shape, 10.0 * chance.uniform(1.0 - noise, 1.0 + noise))
    assert learner.learned is not None
    assert learner.learned.samples == enough


def test_what_a_lone_step_takes_is_kept_where_all_others_are_alike() -> None:
    learner, lone, many = StepLearner(), StepShape(0, 1, 20), StepShape(0, 13, 13 * 80)
    for _ in range(16):
        learner.begin_with(lone, 7.0)
    assert learner.learned is None, "it says nothing of others"
    for _ in range(200):
        learner.observe(many, 44.0)
    assert cost_of(learner).step_ms(lone) == pytest.approx(7.0, rel=0.1)
    assert cost_of(learner).step_ms(many) == pytest.approx(44.0, rel=0.1)


@pytest.mark.parametrize("nonsense", [0.0, -1.0, float("nan"), float("inf")])
def test_an_invalid_time_is_not_learned_from(nonsense: float) -> None:
    learner = StepLearner()
    for _ in range(2 * WARM_UP_SAMPLES):
        learner.observe(StepShape(0, 1, 10), nonsense)
    assert learner.learned is None


def test_the_last_good_cost_stays_while_predictions_are_wrong() -> None:
    chance, learner, cost = random.Random(5), StepLearner(), COSTS[0]
    for shape in some_steps(chance, 600):
        learner.observe(shape, took_ms(chance, cost, shape))
    frozen: list[StepCost] = []
    for shape in some_steps(chance, 500):
        learner.observe(shape, took_ms(chance, slower(cost, 5), shape))
        learned = learned_steps(learner)
        assert learned.is_frozen == (learned.error > MOST_ERROR)
        if learned.is_frozen:
            frozen.append(learned.cost)
    assert frozen
    assert len(set(frozen)) == 1
    assert not learned_steps(learner).is_frozen
    assert cost_of(learner).base_ms == pytest.approx(5 * cost.base_ms, rel=0.1)


def test_a_cost_that_cannot_be_learned_is_flagged_from_the_start() -> None:
    chance, learner = random.Random(6), StepLearner()
    for shape in some_steps(chance, 300):
        learner.observe(shape, 10 ** chance.uniform(0, 3))
    assert learner.learned is not None
    assert learner.learned.is_frozen


def test_hours_of_the_same_step_leave_a_valid_cost() -> None:
    learner = StepLearner()
    for _ in range(20_000):
        learner.observe(StepShape(0, 8, 4000), 20.0)
    assert cost_of(learner).step_ms(StepShape(0, 8, 4000)) == pytest.approx(20, rel=0.001)
    assert not learned_steps(learner).is_frozen


shapes = st.builds(StepShape, st.integers(0, 4096), st.integers(0, 512), st.integers(0, 10**6))


@given(st.lists(st.tuples(shapes, st.floats(1e-3, 1e5)), min_size=WARM_UP_SAMPLES, max_size=80))
@settings(deadline=None)
def test_a_learned_cost_is_not_negative_and_its_error_is_a_share(
    steps: list[tuple[StepShape, float]],
) -> None:
    learner = StepLearner()
    for shape, ms in steps:
        learner.observe(shape, ms)
    assert learner.learned is not None
    cost = learner.learned.cost
    parts = (cost.base_ms, cost.prefill_token_ms, cost.decode_sequence_ms, cost.kv_kilotoken_ms)
    assert all(0 <= part < float("inf") for part in parts)
    assert 0 <= learner.learned.error <= 1


def learned_batches(learner: BatchLearner) -> LearnedBatchCost:
    assert learner.learned is not None
    return learner.learned


@pytest.mark.parametrize("truth", [BatchCost(4, 0.5), BatchCost(0.2, 3), BatchCost(30, 0)])
def test_the_cost_of_batches_is_learned_from_means(truth: BatchCost) -> None:
    chance, learner = random.Random(7), BatchLearner()
    for _ in range(60):
        rows, count = chance.randint(1, 32), chance.randint(1, 200)
        learner.observe(rows, truth.batch_ms(rows) * chance.gauss(1, 0.1 / count**0.5), count)
    for rows in (1, 8, 32):
        assert learned_batches(learner).cost.batch_ms(rows) == pytest.approx(truth.batch_ms(rows), rel=0.08)
    assert not learned_batches(learner).is_frozen


def test_batches_of_varying_time_have_a_slow_quantile() -> None:
    def spread(noise: float) -> float:
        chance, learner = random.Random(8), BatchLearner()
        for _ in range(300):
            rows = chance.randint(1, 16)
            learner.observe(rows, (5 + rows) * max(0.1, chance.gauss(1, noise)))
        return learned_batches(learner).cost.spread

    assert 1.1 <= spread(0.01) < spread(0.15) <= 3
    assert spread(0.15) == pytest.approx(1 + 1.645 * 0.15, abs=0.1)


def test_batches_count_alike_however_they_are_grouped() -> None:
    learner = BatchLearner()
    for rows in (1, 2, 3):
        learner.observe(rows, 10.0, 10)
    before = learner.learned
    learner.observe(4, 10.0, 2)
    assert before is None
    assert learned_batches(learner).samples == 32


def test_zero_batches_teach_nothing() -> None:
    learner = BatchLearner()
    for _ in range(100):
        learner.observe(1, 10.0, 0)
    assert learner.learned is None


@pytest.mark.parametrize("seed", range(3))
def test_rows_and_tokens_are_told_apart_where_texts_have_other_lengths(seed: int) -> None:
    chance, learner, truth = random.Random(seed), BatchLearner(), BatchCost(8.0, 1.0, token_ms=0.3)
    for window in range(40):
        row_tokens = (8, 30, 120)[window % 3]
        for rows in (1, 3, 8, 20):
            took_ms = truth.batch_ms(rows, rows * row_tokens) * chance.lognormvariate(0, 0.05)
            if chance.random() < 0.03:
                took_ms *= 5  # something else held it up
            learner.observe(rows, took_ms, 10, rows * row_tokens)
    cost = learned_batches(learner).cost
    for rows, row_tokens in ((1, 8), (16, 8), (4, 250), (64, 40)):
        expected_ms = truth.batch_ms(rows, rows * row_tokens)
        assert cost.batch_ms(rows, rows * row_tokens) == pytest.approx(expected_ms, rel=0.1)
        by_rows_ms = cost.for_rows_of(row_tokens).batch_ms(rows)
        assert by_rows_ms == pytest.approx(cost.batch_ms(rows, rows * row_tokens))


def test_while_all_texts_are_alike_their_batches_are_predicted_all_the_same() -> None:
    chance, learner, truth = random.Random(3), BatchLearner(), BatchCost(8.0, 1.0, token_ms=0.3)
    for _ in range(100):
        rows = chance.randint(1, 32)
        learner.observe(rows, truth.batch_ms(rows, 12 * rows) * chance.gauss(1, 0.03), 5, 12 * rows)
    cost = learned_batches(learner).cost
    for rows in (1, 8, 32):
        assert cost.batch_ms(rows, 12 * rows) == pytest.approx(truth.batch_ms(rows, 12 * rows), rel=0.08)
