"""AMX, `smmla` and AVX-512 beside the other kernels; what needs a processor that has them runs only there."""

from __future__ import annotations

import numpy as np
import pytest

from python_backend.engine.native.amx import WIDE_ROWS
from python_backend.engine.native.microkernel import Format
from python_backend.engine.native.tiles import can_be_wide
from python_backend.engine.native.weight_layouts import Packed, pack
from tests.engine.native.kernels import Floats, multiply, spread_nibbles
from tests.engine.native.test_microkernel import random_floats
from tests.tiers import few

BYTES = [Format.INT8, Format.INT4]
is_wide = pytest.mark.skipif(not can_be_wide(), reason="no AMX, no VNNI of 512 bits, no i8mm here")


def test_nibbles_are_spread_to_the_bytes_of_their_quads_sixteenfold() -> None:
    matrix = random_floats(8, 96)
    nibbles = pack(matrix, Format.INT4).weights
    out = np.full(2 * len(nibbles) + 1, 7, np.uint8)
    spread_nibbles(nibbles, 3, out)
    quads = nibbles.reshape(-1, 1, 32)
    expected = np.concatenate([quads << 4, quads & 240], axis=1).reshape(-1)
    np.testing.assert_array_equal(out[:-1], expected)
    assert out[-1] == 7


@is_wide
@pytest.mark.parametrize("kind", BYTES)
@pytest.mark.parametrize("count", few([WIDE_ROWS, WIDE_ROWS + 7, 4 * WIDE_ROWS], 1))
@pytest.mark.parametrize("inputs", few([32, 64, 96, 576], [96]))
def test_many_rows_have_the_bits_of_few(kind: Format, count: int, inputs: int) -> None:
    packed, rows = pack(random_floats(24, inputs), kind), random_floats(count, inputs, seed=1)

    def product(wide_from: int) -> Floats:
        return multiply(packed, kind, rows, np.empty((count, 24), np.float32), wide_from=wide_from)

    np.testing.assert_array_equal(product(WIDE_ROWS), product(count + 1))


@is_wide
@pytest.mark.parametrize("kind", BYTES)
def test_a_row_that_is_not_finite_spoils_no_other_of_the_sixteen(kind: Format) -> None:
    packed, rows = pack(random_floats(8, 64), kind), random_floats(WIDE_ROWS, 64, seed=1)
    clean = _wide(packed, kind, rows)
    rows[3, 50] = np.nan
    found = _wide(packed, kind, rows)
    assert np.isnan(found[3]).all()
    np.testing.assert_array_equal(np.delete(found, 3, 0), np.delete(clean, 3, 0))


def _wide(packed: Packed, kind: Format, rows: Floats) -> Floats:
    return multiply(packed, kind, rows, np.empty((len(rows), 8), np.float32), wide_from=WIDE_ROWS)
