"""The small functions inside the step against numpy, and what they do with values that are not numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from python_backend.engine.native.microkernel import GROUP
from tests.engine.native.kernels import Floats, curves, rounded

WIDE = np.concatenate(
    [np.linspace(-86, 87, 100_001), np.linspace(-1, 1, 20_001), [0.0, -0.0, 1e-30, -1e-30]]
).astype(np.float32)


def exponentials_and_tangents(values: Floats) -> tuple[Floats, Floats]:
    exponentials, tangents = np.empty_like(values), np.empty_like(values)
    curves(values, exponentials, tangents)
    return exponentials, tangents


def test_exponentials_are_those_of_numpy_to_fp32s_precision() -> None:
    found, _ = exponentials_and_tangents(WIDE)
    exact = np.exp(WIDE.astype(np.float64))
    # x · log2(e) is rounded before its fraction is taken, so the error grows with x.
    error = np.abs(found / exact - 1)
    assert error[np.abs(WIDE) < 1].max() < 5e-7
    assert error.max() < 1e-5


def test_exponentials_beyond_fp32_stay_finite_and_ordered() -> None:
    far = np.array([-np.inf, -1e30, -500, -87, 88, 500, 1e30, np.inf], np.float32)
    found, _ = exponentials_and_tangents(far)
    assert np.isfinite(found).all()
    assert (found[:4] < 2e-38).all()
    assert (found[4:] > 1e38).all()
    assert (np.diff(found) >= 0).all()


def test_hyperbolic_tangents_are_those_of_numpy() -> None:
    _, found = exponentials_and_tangents(WIDE)
    np.testing.assert_allclose(found, np.tanh(WIDE.astype(np.float64)), atol=5e-7)
    far = np.array([-np.inf, -1e30, -100, 100, 1e30, np.inf], np.float32)
    np.testing.assert_array_equal(exponentials_and_tangents(far)[1], [-1, -1, -1, 1, 1, 1])


@pytest.mark.parametrize("place", range(9))
def test_a_nan_stays_nan_and_does_not_affect_its_neighbours(place: int) -> None:
    values = np.linspace(-3, 3, 9).astype(np.float32)
    clean = exponentials_and_tangents(values)
    spoiled = values.copy()
    spoiled[place] = np.nan
    for found, expected in zip(exponentials_and_tangents(spoiled), clean, strict=True):
        assert np.isnan(found[place])
        np.testing.assert_array_equal(np.delete(found, place), np.delete(expected, place))


finite = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)


@settings(deadline=None)
@given(arrays(np.float32, (2, 2 * GROUP), elements=finite))
def test_quantised_bytes_are_within_half_a_step_and_their_sums_are_right(rows: Floats) -> None:
    inputs = rounded(rows)
    steps = inputs.worths.repeat(GROUP, 1)
    found = inputs.levels * steps.astype(np.float64)
    assert (np.abs(found - rows) <= 0.501 * steps + 1e-30).all()
    np.testing.assert_array_equal(inputs.totals, inputs.levels.reshape(2, 2, GROUP).sum(2, dtype=np.int64))


def test_the_largest_value_of_a_group_takes_the_largest_byte() -> None:
    rows = np.linspace(-2, 1, GROUP, dtype=np.float32)[None]
    inputs = rounded(rows)
    assert inputs.levels.min() == -127
    assert inputs.worths[0, 0] == pytest.approx(2 / 127)


def test_zeros_are_quantised_to_zeros() -> None:
    inputs = rounded(np.zeros((1, GROUP), np.float32))
    assert not inputs.levels.any()
    assert inputs.worths[0, 0] == inputs.totals[0, 0] == 0


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 17, 31])
def test_a_value_that_is_not_finite_makes_its_group_nan(poison: float, place: int) -> None:
    rows = np.linspace(-2, 1, 2 * GROUP, dtype=np.float32)[None].copy()
    clean = rounded(rows)
    rows[0, place] = poison
    inputs = rounded(rows)
    assert not np.isfinite(inputs.worths[0, 0])
    assert inputs.worths[0, 1] == clean.worths[0, 1]
