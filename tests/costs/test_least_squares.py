from __future__ import annotations

import random
from math import isfinite

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.costs.least_squares import LeastSquares
from tests.tiers import examples

amounts = st.tuples(st.just(1.0), st.floats(0, 5000), st.floats(0, 500), st.floats(0, 1e6))
times = st.floats(1e-3, 1e5)


def test_a_sum_without_noise_is_found_exactly() -> None:
    chance, fit = random.Random(1), LeastSquares((1, 100, 10))
    for _ in range(200):
        inputs = (1.0, chance.uniform(0, 500), chance.uniform(0, 60))
        fit.observe(inputs, 5 + 0.1 * inputs[1] + 0.3 * inputs[2])
    assert fit.coefficients == pytest.approx((5, 0.1, 0.3), rel=1e-3)


def test_one_measurement_is_believed_where_nothing_is_known() -> None:
    fit = LeastSquares((1, 8))
    fit.observe((1.0, 4.0), 20.0)
    assert fit.predict((1.0, 4.0)) == pytest.approx(20, rel=0.01)


def test_a_zero_coefficient_does_not_affect_the_others() -> None:
    chance, fit = random.Random(2), LeastSquares((1, 100, 10))
    for _ in range(1000):
        inputs = (1.0, chance.uniform(0, 500), chance.uniform(0, 60))
        fit.observe(inputs, (5 + 0.1 * inputs[1]) * chance.gauss(1, 0.05))
    base, first, second = fit.coefficients
    assert base == pytest.approx(5, rel=0.05)
    assert first == pytest.approx(0.1, rel=0.05)
    assert second == pytest.approx(0, abs=0.01)


@given(st.lists(st.tuples(amounts, times), max_size=60))
@settings(deadline=None)
def test_coefficients_are_finite_and_not_negative_for_any_measurements(
    measured: list[tuple[tuple[float, ...], float]],
) -> None:
    fit = LeastSquares((1, 100, 10, 10_000))
    for inputs, took in measured:
        fit.observe(inputs, took)
        assert all(isfinite(coefficient) and coefficient >= 0 for coefficient in fit.coefficients)
    assert fit.samples == len(measured)


@given(st.lists(st.tuples(amounts, times), max_size=20), amounts, times)
@settings(deadline=None, max_examples=examples(15))
def test_a_repeated_time_is_predicted_in_the_end(
    measured: list[tuple[tuple[float, ...], float]], inputs: tuple[float, ...], took: float
) -> None:
    fit = LeastSquares((1, 100, 10, 10_000))
    for other, other_took in measured:
        fit.observe(other, other_took)
    for _ in range(800):
        fit.observe(inputs, took)
    # After one that took ten thousand times as long, the last few percent take longer than this.
    assert fit.predict(inputs) == pytest.approx(took, rel=0.1)


def test_a_nonsensical_first_measurement_is_forgotten() -> None:
    fit = LeastSquares((1, 8))
    fit.observe((1.0, 1.0), 0.01)
    for _ in range(300):
        fit.observe((1.0, 1.0), 200.0)
    assert fit.predict((1.0, 1.0)) == pytest.approx(200, rel=0.05)


def test_hours_of_the_same_step_do_not_change_the_cost_of_others() -> None:
    chance, fit = random.Random(3), LeastSquares((1, 100, 10))
    for _ in range(500):
        inputs = (1.0, chance.uniform(0, 500), chance.uniform(0, 60))
        fit.observe(inputs, (5 + 0.1 * inputs[1] + 0.3 * inputs[2]) * chance.gauss(1, 0.05))
    before = fit.predict((1.0, 400.0, 2.0))
    for _ in range(20_000):
        fit.observe((1.0, 0.0, 20.0), 11 * chance.gauss(1, 0.05))
    assert all(isfinite(coefficient) for coefficient in fit.coefficients)
    assert fit.predict((1.0, 0.0, 20.0)) == pytest.approx(11, rel=0.05)
    assert fit.predict((1.0, 400.0, 2.0)) == pytest.approx(before, rel=0.2)


def test_a_slowdown_seen_in_one_kind_of_step_is_expected_of_the_others() -> None:
    chance, fit = random.Random(4), LeastSquares((1, 100, 10))
    for _ in range(500):
        inputs = (1.0, chance.uniform(0, 500), chance.uniform(0, 60))
        fit.observe(inputs, (5 + 0.1 * inputs[1] + 0.3 * inputs[2]) * chance.gauss(1, 0.05))
    for _ in range(100):
        inputs = (1.0, 0.0, chance.uniform(0, 60))
        fit.observe(inputs, 2 * (5 + 0.3 * inputs[2]) * chance.gauss(1, 0.05))
    assert fit.predict((1.0, 400.0, 2.0)) == pytest.approx(2 * 45.6, rel=0.2)


def test_a_mean_of_many_counts_more_than_a_single_measurement() -> None:
    def after(weight: float) -> float:
        fit = LeastSquares((1, 8))
        for _ in range(50):
            fit.observe((1.0, 4.0), 10.0)
        fit.observe((1.0, 4.0), 10.5, weight)
        return fit.predict((1.0, 4.0))

    assert after(16) > after(1) > 10
