"""Tiles of packed weights times one, two or four rows, or two of them times sixteen, in any format.

Sixteen rows are multiplied by AMX, by AVX-512's VNNI or, on Arm, by `smmla`; nobody may ask for it elsewhere.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from python_backend.engine.native.amx import (
    GROUP_BYTES,
    HAS_AMX,
    WIDE_ROWS,
    is_permitted,
    make_wide_tile,
    spread,
)
from python_backend.engine.native.arithmetic import OPTIONS
from python_backend.engine.native.microkernel import ROWS, Format, make_tile
from python_backend.engine.native.smmla import SQUARE_ROWS, laid_out_bytes, make_lay_out, make_squares
from python_backend.engine.native.vectors import HAS_SMMLA, HAS_WIDE_VNNI
from python_backend.engine.native.vnni import BLOCK_ROWS, make_block, make_side_by_side
from python_backend.engine.native.vnni import laid_out_bytes as bytes_side_by_side

# What lays two tiles out for a few rows, and multiplies these: `smmla`'s or AVX-512's.
_lay_out, _few_rows = (make_lay_out, make_squares) if HAS_SMMLA else (make_side_by_side, make_block)
_FEW_ROWS = SQUARE_ROWS if HAS_SMMLA else BLOCK_ROWS

_fp32_one, _fp32_two, _fp32_four = (make_tile(Format.FP32, rows) for rows in ROWS)
_int8_one, _int8_two, _int8_four = (make_tile(Format.INT8, rows) for rows in ROWS)
_int4_one, _int4_two, _int4_four = (make_tile(Format.INT4, rows) for rows in ROWS)
_int8_wide, _int4_wide = make_wide_tile(Format.INT8), make_wide_tile(Format.INT4)
_int8_few, _int4_few = _few_rows(Format.INT8), _few_rows(Format.INT4)
_lay_out_int8, _lay_out_int4 = _lay_out(Format.INT8), _lay_out(Format.INT4)
FP32, INT8, INT4 = np.int64(Format.FP32), np.int64(Format.INT8), np.int64(Format.INT4)
TILE_BYTES = tuple(kind.bytes_per_group for kind in Format)
TILE_SCALES = tuple(kind.scales_per_group for kind in Format)


def can_be_wide() -> bool:
    """Whether sixteen rows may be asked for."""
    return is_permitted() if HAS_AMX else HAS_SMMLA or HAS_WIDE_VNNI


@njit(**OPTIONS)
def times_tile(kind, rows, w, s, a, a_step, sizes, totals, g_step, groups, begin, begin_step, out, out_step):
    """Addresses and strides as the microkernel wants them."""
    if kind == INT8:
        if rows == 1:
            _int8_one(w, s, a, a_step, sizes, totals, g_step, groups, begin, begin_step, out, out_step)
        elif rows == 2:
            _int8_two(w, s, a, a_step, sizes, totals, g_step, groups, begin, begin_step, out, out_step)
        else:
            _int8_four(w, s, a, a_step, sizes, totals, g_step, groups, begin, begin_step, out, out_step)
    elif kind == INT4:
        if rows == 1:
            _int4_one(w, s, a, a_step, sizes, totals, g_step, groups, begin, begin_step, out, out_step)
        elif rows == 2:
            _int4_two(w, s, a, a_step, sizes, totals, g_step, groups, begin, begin_step, out, out_step)
        else:
            _int4_four(w, s, a, a_step, sizes, totals, g_step, groups, begin, begin_step, out, out_step)
    elif rows == 1:
        _fp32_one(w, s, a, a_step, sizes, totals, g_step, groups, begin, begin_step, out, out_step)
    elif rows == 2:
        _fp32_two(w, s, a, a_step, sizes, totals, g_step, groups, begin, begin_step, out, out_step)
    else:
        _fp32_four(w, s, a, a_step, sizes, totals, g_step, groups, begin, begin_step, out, out_step)


@njit(**OPTIONS)
def _laid_out_for_amx(kind, w, s, groups, buffer):
    if kind == INT8:
        return w
    spread(w, groups, buffer)
    return buffer


@njit(**OPTIONS)
def _laid_out_anew(kind, w, s, groups, buffer):
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
def _by_few(kind, w, s, a, a_step, sizes, totals, g_step, groups, begin, begin_step, out, out_step, gap):
    for row in range(0, WIDE_ROWS, _FEW_ROWS):
        rows = a + row * a_step, a_step, sizes + row * g_step, totals + row * g_step, g_step
        sums = begin + row * begin_step, begin_step, out + row * out_step, out_step
        if kind == INT8:
            _int8_few(w, *rows, groups, *sums, gap)
        else:
            _int4_few(w, *rows, groups, *sums, gap)


# `times_wide` multiplies two tiles with sixteen rows, of bytes; the second tile's sums end `gap` bytes behind
# those of the first. laid_out(kind, w, s, groups, buffer) is where it finds weights, if need be in the buffer
# and with LAID_OUT_BYTES of a group at most. WIDE is what people call it.
if HAS_SMMLA or (HAS_WIDE_VNNI and not HAS_AMX):
    WIDE = "smmla" if HAS_SMMLA else "AVX-512"
    LAID_OUT_BYTES = (laid_out_bytes if HAS_SMMLA else bytes_side_by_side)(Format.INT4)
    laid_out, times_wide = _laid_out_anew, _by_few
else:  # without AMX there is nothing to compile
    WIDE, LAID_OUT_BYTES, laid_out, times_wide = "AMX", GROUP_BYTES, _laid_out_for_amx, _by_amx
