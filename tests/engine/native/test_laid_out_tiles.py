"""A few rows and two tiles laid out for them, by `smmla` and by AVX-512, or with those spelled out."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from python_backend.engine.native import smmla, vnni
from python_backend.engine.native.microkernel import Format
from python_backend.engine.native.weight_layouts import pack
from tests.engine.native.kernels import multiply, rounded, times_two_tiles_laid_out
from tests.engine.native.test_microkernel import random_floats

FORMS: list[tuple[ModuleType, Any, Any, int]] = [
    (smmla, smmla.make_lay_out, smmla.make_squares, smmla.SQUARE_ROWS),
    (vnni, vnni.make_side_by_side, vnni.make_block, vnni.BLOCK_ROWS),
]


@pytest.mark.parametrize("kind", [Format.INT8, Format.INT4])
@pytest.mark.parametrize("form", FORMS, ids=["smmla", "AVX-512"])
def test_rows_times_tiles_that_are_laid_out_have_the_bits_of_the_other_kernels(
    form: tuple[ModuleType, Any, Any, int], kind: Format
) -> None:
    module, make_lay_out, make_tile, count = form
    multiply_laid_out = times_two_tiles_laid_out(
        make_lay_out(kind), make_tile(kind), module.laid_out_bytes(kind)
    )
    for groups in (1, 2, 3, 7):
        packed, begin = pack(random_floats(16, 32 * groups), kind), random_floats(16, seed=2)
        rows, found = random_floats(count, 32 * groups, seed=1), np.empty((count, 16), np.float32)
        multiply_laid_out(packed, rounded(rows), begin, found)
        expected = multiply(packed, kind, rows, np.empty((count, 16), np.float32), bias=begin)
        assert np.isfinite(expected).all()
        np.testing.assert_array_equal(found, expected)
