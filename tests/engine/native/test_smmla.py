"""Rows and channels two by two, by `smmla` or, on a processor without, with that instruction spelled out."""

from __future__ import annotations

import numpy as np
import pytest

from python_backend.engine.native.microkernel import Format
from python_backend.engine.native.weight_layouts import pack
from tests.engine.native.kernels import multiply, rounded, two_rows_by_smmla
from tests.engine.native.test_microkernel import random_floats


@pytest.mark.parametrize("kind", [Format.INT8, Format.INT4])
def test_two_rows_times_two_channels_have_the_bits_of_the_other_kernels(kind: Format) -> None:
    times_two_tiles = two_rows_by_smmla(kind)
    for groups in (1, 2, 3, 7):
        packed, begin = pack(random_floats(16, 32 * groups), kind), random_floats(16, seed=2)
        rows, found = random_floats(2, 32 * groups, seed=1), np.empty((2, 16), np.float32)
        times_two_tiles(packed, rounded(rows), begin, found)
        expected = multiply(packed, kind, rows, np.empty((2, 16), np.float32), bias=begin)
        assert np.isfinite(expected).all()
        np.testing.assert_array_equal(found, expected)
