"""Products and sums of the kernels against numpy, and each row's own result whatever rows share the tile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.engine.host.processor import Instructions
from python_backend.engine.native.combining import LANES
from python_backend.engine.native.microkernel import GROUP, LARGEST_HALF, MOST_ROWS, Format
from python_backend.engine.native.vectors import VECTORS, Dot, Vectors, vectors_of
from python_backend.engine.native.weight_layouts import pack
from tests.engine.native.kernels import Floats, as_halfs, combine, multiply, rounded, times_one_tile
from tests.engine.native.unpacked import unpack
from tests.tiers import examples, few


def random_floats(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def as_seen_by_the_kernel(rows: Floats, kind: Format) -> Floats:
    """Rows after their rounding to bytes, where the format has any."""
    inputs = rounded(rows)
    if kind is Format.FP32:
        return np.asarray(inputs.floats)
    seen: Floats = inputs.levels * inputs.worths.repeat(GROUP, 1)
    return seen


def check_product(kind: Format, count: int, outputs: int, inputs: int, seed: int = 0) -> None:
    matrix, rows = random_floats(outputs, inputs, seed=seed), random_floats(count, inputs, seed=seed + 1)
    packed = pack(matrix, kind)
    found = multiply(packed, kind, rows, np.full((count, outputs), np.nan, np.float32))
    weights = unpack(packed, kind, outputs, inputs).matrix[:outputs]
    expected = as_seen_by_the_kernel(rows, kind).astype(np.float64) @ weights.astype(np.float64).T
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    for row in range(count):
        alone = multiply(packed, kind, rows[row : row + 1], np.empty((1, outputs), np.float32))
        np.testing.assert_array_equal(found[row], alone[0])


@pytest.mark.parametrize("kind", Format)
@pytest.mark.parametrize("count", few(range(1, 10), 3))
def test_the_product_is_that_of_numpy_and_a_row_never_depends_on_its_neighbours(
    kind: Format, count: int
) -> None:
    check_product(kind, count, outputs=21, inputs=100)


@settings(deadline=None, max_examples=examples(40))
@given(
    st.sampled_from(Format), st.integers(1, 9), st.integers(1, 50), st.integers(1, 200), st.integers(0, 99)
)
def test_products_of_any_shape_are_those_of_numpy(
    kind: Format, count: int, outputs: int, inputs: int, seed: int
) -> None:
    check_product(kind, count, outputs, inputs, seed)


# Whatever the processor at hand has: the instructions are then spelled out.
OTHER_VECTORS = [Vectors(4, Dot.IN_PAIRS), Vectors(8, Dot.IN_PAIRS), Vectors(8, Dot.BIASED)]


@pytest.mark.parametrize("kind", Format)
@pytest.mark.parametrize("vectors", few(OTHER_VECTORS, 1), ids=str)
def test_every_processor_computes_the_same_bits(kind: Format, vectors: Vectors) -> None:
    packed, rows = pack(random_floats(8, 96), kind), rounded(random_floats(MOST_ROWS, 96, seed=1))
    begin = random_floats(MOST_ROWS, 8, seed=2)
    expected, found = np.empty((MOST_ROWS, 8), np.float32), np.empty((MOST_ROWS, 8), np.float32)
    times_one_tile(kind, VECTORS)(packed, rows, begin, expected)
    times_one_tile(kind, vectors)(packed, rows, begin, found)
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("instructions", "features", "expected"),
    [
        (Instructions.DOT_PRODUCTS, "+neon,+dotprod", Vectors(4, Dot.SIGNED)),
        (Instructions.DOT_PRODUCTS, "", Vectors(4, Dot.IN_PAIRS)),
        (Instructions.AVX512_VNNI, "+avx2,+avx512vl,+avx512vnni", Vectors(8, Dot.BIASED)),
        (Instructions.AVX_VNNI, "+avx2,-avx512vl,+avxvnni", Vectors(8, Dot.BIASED)),
        (Instructions.AVX512_VNNI, "+avx2,-avx512vl,-avx512vnni", Vectors(4, Dot.IN_PAIRS)),
        (Instructions.AVX2, "+avx2", Vectors(8, Dot.IN_PAIRS)),
        (Instructions.ANY, "+sse4.2", Vectors(4, Dot.IN_PAIRS)),
    ],
)
def test_vectors_are_those_that_the_processor_has_and_numba_compiles_for(
    instructions: Instructions, features: str, expected: Vectors
) -> None:
    assert vectors_of(instructions, set(features.split(","))) == expected


@pytest.mark.parametrize("outputs", [16, 21])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("adds", [False, True])
def test_a_product_may_have_a_bias_and_be_added(outputs: int, has_bias: bool, adds: bool) -> None:
    matrix, rows = random_floats(outputs, 40), random_floats(5, 40, seed=1)
    bias = random_floats(outputs, seed=2) if has_bias else None
    before = random_floats(5, outputs, seed=3)
    found = multiply(pack(matrix, Format.FP32), Format.FP32, rows, before.copy(), bias, adds)
    expected = rows @ matrix.T + (0 if bias is None else bias) + (before if adds else 0)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("kind", Format)
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_row_that_is_not_finite_spoils_no_other(kind: Format, poison: float) -> None:
    packed, rows = pack(random_floats(16, 64), kind), random_floats(4, 64, seed=1)
    clean = multiply(packed, kind, rows, np.empty((4, 16), np.float32))
    rows[2, 50] = poison
    found = multiply(packed, kind, rows, np.empty((4, 16), np.float32))
    assert not np.isfinite(found[2]).any()
    np.testing.assert_array_equal(np.delete(found, 2, 0), np.delete(clean, 2, 0))


@pytest.mark.parametrize("kind", [Format.INT8, Format.INT4])
def test_a_weight_that_is_not_finite_comes_out_as_nan(kind: Format) -> None:
    matrix, rows = random_floats(16, 64), random_floats(5, 64, seed=1)
    matrix[9, 3] = np.inf
    found = multiply(pack(matrix, kind), kind, rows, np.empty((5, 16), np.float32))
    assert np.isnan(found[:, 9]).all()
    assert np.isfinite(np.delete(found, 9, 1)).all()


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("queries", few(range(1, 10), 3))
@pytest.mark.parametrize("count", few([0, 1, 5, 33]))
@pytest.mark.parametrize("numbers", [np.float32, np.float16])
def test_combinations_of_rows_are_those_of_numpy_for_any_number_of_queries(
    queries: int, count: int, adds: bool, numbers: type[np.floating[Any]]
) -> None:
    shares, rows = random_floats(queries, count), random_floats(count, LANES, seed=1).astype(numbers)
    before = random_floats(queries, LANES, seed=2)
    found = combine(shares, rows, before.copy(), adds)
    expected = shares @ rows.astype(np.float32) + (before if adds else 0)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    for query in range(queries):
        alone = combine(shares[query : query + 1], rows, before[query : query + 1].copy(), adds)
        np.testing.assert_array_equal(found[query], alone[0])


def test_halfs_are_rounded_as_numpy_does_and_end_at_the_largest() -> None:
    values = np.array([0.1, -3.14159, 1e-7, 65519.9, 70000, -1e30, np.inf, -np.inf, np.nan], np.float32)
    expected = np.clip(values, -LARGEST_HALF, LARGEST_HALF).astype(np.float16)
    np.testing.assert_array_equal(as_halfs(values), expected)


def test_a_weight_of_zero_changes_no_bit_of_a_sum() -> None:
    shares, rows = random_floats(3, 20), random_floats(20, LANES, seed=1)
    shares[:, 12:] = 0
    whole = combine(shares, rows, np.zeros((3, LANES), np.float32), adds=True)
    front = np.ascontiguousarray(shares[:, :12])
    np.testing.assert_array_equal(whole, combine(front, rows, np.zeros((3, LANES), np.float32), adds=True))
