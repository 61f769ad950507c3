"""Tiles of packed weights times one or four rows, or two of them times sixteen, in any format.

Sixteen rows are multiplied by AMX or, on Arm, by `smmla`; nobody may ask for it elsewhere.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from python_backend.engine.native.amx import (
    GROUP_BYTES,
    WIDE_ROWS,
    is_permitted,
    make_wide_tile,
    spread,
)
from python_backend.engine.native.arithmetic import OPTIONS
from python_backend.engine.native.microkernel import ROWS, Format, make_tile
from python_backend.engine.native.smmla import SQUARE_ROWS, laid_out_bytes, make_lay_out, make_squares
from python_backend.engine.native.vectors import HAS_SMMLA

_fp32_one, _fp32_four = make_tile(Format.FP32, 1), make_tile(Format.FP32, ROWS)
_int8_one, _int8_four = make_tile(Format.INT8, 1), make_tile(Format.INT8, ROWS)
_int4_one, _int4_four = make_tile(Format.INT4, 1), make_tile(Format.INT4, ROWS)
_int8_wide, _int4_wide = make_wide_tile(Format.INT8), make_wide_tile(Format.INT4)
_int8_squares, _int4_squares = make_squares(Format.INT8), make_squares(Format.INT4)
_lay_out_int8, _lay_out_int4 = make_lay_out(Format.INT8), make_lay_out(Format.INT4)
FP32, INT8, INT4 = np.int64(Format.FP32), np.int64(Format.INT8), np.int64(Format.INT4)
TILE_BYTES = tuple(kind.bytes_per_group for kind in Format)
TILE_SCALES = tuple(kind.scales_per_group for kind in Format)
LAID_OUT_BYTES = laid_out_bytes(Format.INT4) if HAS_SMMLA else GROUP_BYTES  # of a group, at most
# As people call what multiplies sixteen rows.
WIDE = "smmla" if HAS_SMMLA else "AMX"


def can_be_wide() -> bool:
    """Whether sixteen rows may be asked for."""
    return HAS_SMMLA or is_permitted()


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
def _laid_out_for_amx(kind, w, s, groups, buffer):
    if kind == INT8:
        return w
    spread(w, groups, buffer)
    return buffer


@njit(**OPTIONS)
def _laid_out_for_smmla(kind, w, s, groups, buffer):
    if kind == INT8:
        _lay_out_int8(w, s, groups, buffer)
    else:
        _lay_out_int4(w, s, groups, buffer)
    return buffer


@njit(**OPTIONS)
def _by_amx(kind, w, s, a, a_step, sizes, totals, g_step, groups, begin, begin_step, out, out_step, gap):
    if kind == INT8:
        _int8_wide(w, s, a, a_step, sizes, totals, g_step, groups, begin, begin_step, out, out_step, gap)
    else:
        _int4_wide(w, s, a, a_step, sizes, totals, g_step, groups, begin, begin_step, out, out_step, gap)


@njit(**OPTIONS)
def _by_smmla(kind, w, s, a, a_step, sizes, totals, g_step, groups, begin, begin_step, out, out_step, gap):
    for row in range(0, WIDE_ROWS, SQUARE_ROWS):
        rows = a + row * a_step, a_step, sizes + row * g_step, totals + row * g_step, g_step
        sums = begin + row * begin_step, begin_step, out + row * out_step, out_step
        if kind == INT8:
            _int8_squares(w, *rows, groups, *sums, gap)
        else:
            _int4_squares(w, *rows, groups, *sums, gap)


# laid_out(kind, w, s, groups, buffer) is where `times_wide` finds weights: if need be, in the buffer.
laid_out = _laid_out_for_smmla if HAS_SMMLA else _laid_out_for_amx
# Two tiles times sixteen rows, of bytes; the second tile's sums end `gap` bytes behind those of the first.
times_wide = _by_smmla if HAS_SMMLA else _by_amx
