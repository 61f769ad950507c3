"""Tiles of packed weights times one or four rows, or by AMX two of them times sixteen, in any format."""

from __future__ import annotations

import numpy as np
from numba import njit

from python_backend.engine.native.amx import make_wide_tile
from python_backend.engine.native.arithmetic import OPTIONS
from python_backend.engine.native.microkernel import ROWS, Format, make_tile

_fp32_one, _fp32_four = make_tile(Format.FP32, 1), make_tile(Format.FP32, ROWS)
_int8_one, _int8_four = make_tile(Format.INT8, 1), make_tile(Format.INT8, ROWS)
_int4_one, _int4_four = make_tile(Format.INT4, 1), make_tile(Format.INT4, ROWS)
_int8_wide, _int4_wide = make_wide_tile(Format.INT8), make_wide_tile(Format.INT4)
FP32, INT8, INT4 = np.int64(Format.FP32), np.int64(Format.INT8), np.int64(Format.INT4)
TILE_BYTES = tuple(kind.bytes_per_group for kind in Format)
TILE_SCALES = tuple(kind.scales_per_group for kind in Format)


@njit(**OPTIONS)
def times_tile(kind, rows, w, s, a, a_step, sizes, totals, g_step, groups, begin, begin_step, out, out_step):
    """Addresses and strides as the microkernel wants them."""
    if kind == INT8:
        if rows == 1:
            _int8_one(w, s, a, a_step, sizes, totals, g_step, groups, begin, begin_step, out, out_step)
        else:
            _int8_four(w, s, a, a_step, sizes, totals, g_step, groups, begin, begin_step, out, out_step)
    elif kind == INT4:
        if rows == 1:
            _int4_one(w, s, a, a_step, sizes, totals, g_step, groups, begin, begin_step, out, out_step)
        else:
            _int4_four(w, s, a, a_step, sizes, totals, g_step, groups, begin, begin_step, out, out_step)
    elif rows == 1:
        _fp32_one(w, s, a, a_step, sizes, totals, g_step, groups, begin, begin_step, out, out_step)
    else:
        _fp32_four(w, s, a, a_step, sizes, totals, g_step, groups, begin, begin_step, out, out_step)


@njit(**OPTIONS)
def times_wide(kind, w, s, a, a_step, sizes, totals, g_step, groups, begin, begin_step, out, out_step, gap):
    """Two tiles times sixteen rows, of bytes; 4-bit weights are spread."""
    if kind == INT8:
        _int8_wide(w, s, a, a_step, sizes, totals, g_step, groups, begin, begin_step, out, out_step, gap)
    else:
        _int4_wide(w, s, a, a_step, sizes, totals, g_step, groups, begin, begin_step, out, out_step, gap)
