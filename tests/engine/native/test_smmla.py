"""Rows and channels two by two, by `smmla` or, on a processor without, with that instruction spelled out."""

from __future__ import annotations

import numpy as np
import pytest

from python_backend.engine.native.microkernel import ROWS, Format, make_tile
from python_backend.engine.native.smmla import make_squares
from python_backend.engine.native.weight_layouts import pack
from tests.engine.native.kernels import laid_out, rounded, times_one_tile
from tests.engine.native.test_microkernel import random_floats


@pytest.mark.parametrize("kind", [Format.INT8, Format.INT4])
def test_two_rows_times_two_channels_have_the_bits_of_the_other_kernels(kind: Format) -> None:
    usual, by_squares = times_one_tile(kind, make_tile(kind, ROWS)), times_one_tile(kind, make_squares(kind))
    for groups in (1, 2, 3, 7):
        packed = pack(random_floats(8, 32 * groups), kind)
        rows, begin = rounded(random_floats(ROWS, 32 * groups, seed=1)), random_floats(ROWS, 8, seed=2)
        expected, found = np.empty((ROWS, 8), np.float32), np.empty((ROWS, 8), np.float32)
        usual(packed, rows, begin, expected)
        by_squares(laid_out(kind, packed), rows, begin, found)
        assert np.isfinite(expected).all()
        np.testing.assert_array_equal(found, expected)
