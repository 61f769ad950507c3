"""What pack writes, read back in plain numpy: nothing is lost but what the format cannot hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.engine.models.decoder import Grouped, Numbers
from python_backend.engine.native.microkernel import CHANNELS, GROUP, Format
from python_backend.engine.native.weight_layouts import Floats, pack, whole
from tests.engine.native.unpacked import unpack
from tests.tiers import examples

# Of a number in half precision: what rounding to it may cost, beside its size and at least.
HALF, TINIEST_HALF = 2.0**-11, 2.0**-25
sizes = st.integers(1, 70)


def random_matrix(outputs: int, inputs: int, seed: int = 0, scale: float = 1.0) -> Floats:
    dice = np.random.default_rng(seed)
    return (dice.standard_normal((outputs, inputs)) * scale).astype(np.float32)


def largest_of_group(matrix: Floats) -> Floats:
    """(outputs, inputs): the largest magnitude in the group a weight belongs to."""
    outputs, inputs = matrix.shape
    padded = np.zeros((outputs, whole(inputs, GROUP)), np.float32)
    padded[:, :inputs] = np.abs(matrix)
    largest: Floats = padded.reshape(outputs, -1, GROUP).max(2).repeat(GROUP, 1)[:, :inputs]
    return largest


@settings(deadline=None, max_examples=examples(60))
@given(sizes, sizes, st.integers(0, 1000), st.sampled_from(Format), st.sampled_from([0.02, 1.0, 30.0]))
def test_a_packed_matrix_of_any_shape_comes_back_within_half_a_step(
    outputs: int, inputs: int, seed: int, kind: Format, scale: float
) -> None:
    matrix = random_matrix(outputs, inputs, seed, scale)
    unpacked = unpack(pack(matrix, kind), kind, outputs, inputs)
    found = unpacked.matrix[:outputs, :inputs]
    if kind is Format.FP32:
        np.testing.assert_array_equal(found, matrix)
    else:
        steps = unpacked.steps.repeat(GROUP, 1)[:outputs, :inputs]
        # What the halfs beside the levels lose: little, but not part of the half step.
        lost_to_halfs = 2 * HALF * largest_of_group(matrix) + 256 * TINIEST_HALF
        assert (np.abs(found - matrix) <= 0.5001 * steps + lost_to_halfs).all()


@pytest.mark.parametrize("kind", Format)
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (8, 32), (9, 33), (13, 100)])
def test_the_padding_of_a_packed_matrix_is_zero(outputs: int, inputs: int, kind: Format) -> None:
    # All of one sign: zeros beside them are then the lowest level of 4 bits, not its middle.
    matrix: Floats = np.abs(random_matrix(outputs, inputs)) + np.float32(1)
    padded = unpack(pack(matrix, kind), kind, outputs, inputs).matrix
    assert padded.shape == (whole(outputs, CHANNELS), whole(inputs, GROUP))
    assert (padded[outputs:] == 0).all()
    tolerance = 0 if kind is not Format.INT4 else 2 * HALF * float(matrix.max())
    np.testing.assert_allclose(padded[:outputs, inputs:], 0, atol=tolerance)


@pytest.mark.parametrize("kind", [Format.INT8, Format.INT4])
def test_quantisation_steps_are_as_small_as_the_format_allows(kind: Format) -> None:
    matrix = random_matrix(8, 32)
    steps = unpack(pack(matrix, kind), kind, 8, 32).steps[:, 0]
    spread = np.abs(matrix).max(1) / 127 if kind is Format.INT8 else np.ptp(matrix, 1) / 15
    np.testing.assert_allclose(steps, spread, rtol=2 * HALF)


@pytest.mark.parametrize("kind", [Format.INT8, Format.INT4])
@pytest.mark.parametrize("value", [0.0, 0.75, -3.0])
def test_a_group_of_equal_weights_is_exact_enough(kind: Format, value: float) -> None:
    matrix = np.full((8, 64), value, np.float32)
    found = unpack(pack(matrix, kind), kind, 8, 64).matrix
    np.testing.assert_allclose(found, matrix, rtol=2 * HALF)


@pytest.mark.parametrize("kind", Format)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_not_finite_spoils_its_group_alone(kind: Format, poison: float) -> None:
    matrix = random_matrix(16, 96)
    spoiled = matrix.copy()
    spoiled[3, 40] = poison
    found = unpack(pack(spoiled, kind), kind, 16, 96).matrix
    clean = unpack(pack(matrix, kind), kind, 16, 96).matrix
    if kind is Format.FP32:
        np.testing.assert_array_equal(found, spoiled)
        return
    group = (slice(3, 4), slice(32, 64))
    assert np.isnan(found[group]).all()
    found[group] = clean[group]
    np.testing.assert_array_equal(found, clean)


@pytest.mark.parametrize(
    ("numbers", "kind", "offset_steps"),
    [
        (Numbers.INT4, Format.INT4, None),
        (Numbers.INT4, Format.INT4, 3),
        (Numbers.INT4, Format.INT8, 3),
        (Numbers.INT8, Format.INT8, None),
        (Numbers.E2M1, Format.INT8, None),
    ],
)
def test_a_quantised_matrix_keeps_its_levels(
    numbers: Numbers, kind: Format, offset_steps: int | None
) -> None:
    dice = np.random.default_rng(0)
    most = 8 if numbers is Numbers.INT4 else 100
    levels = dice.integers(-most, most, (11, 128)).astype(np.int8)
    scales = dice.integers(1, 9, (11, 2)).astype(np.float32) / 64  # exact as halfs
    offsets = None if offset_steps is None else scales * offset_steps
    matrix = Grouped(numbers, levels, scales, offsets)
    found = unpack(pack(matrix, kind), kind, 11, 128).matrix[:11, :128]
    np.testing.assert_array_equal(found, matrix.dequantized())


@pytest.mark.parametrize(
    ("matrix", "kind"),
    [
        (Grouped(Numbers.INT8, np.full((8, 32), 77, np.int8), np.ones((8, 1), np.float32)), Format.INT4),
        (Grouped(Numbers.INT4, np.full((8, 32), 7, np.int8), np.ones((8, 2), np.float32)), Format.INT4),
        (Grouped(Numbers.E4M3, np.full((8, 32), 77, np.uint8), np.ones((8, 1), np.float32)), Format.INT8),
        (
            Grouped(
                Numbers.INT4,
                np.full((8, 32), 7, np.int8),
                np.ones((8, 1), np.float32),
                np.full((8, 1), 0.3, np.float32),
            ),
            Format.INT8,
        ),
    ],
    ids=["levels of 8 bits in 4", "narrow groups", "floats", "an offset of no whole steps"],
)
def test_a_quantised_matrix_that_a_format_has_no_room_for_is_rounded_anew(
    matrix: Grouped, kind: Format
) -> None:
    found = unpack(pack(matrix, kind), kind, 8, 32).matrix
    expected = unpack(pack(matrix.dequantized(), kind), kind, 8, 32).matrix
    np.testing.assert_array_equal(found, expected)
