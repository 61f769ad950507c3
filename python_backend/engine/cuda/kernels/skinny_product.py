"""Few rows against a matrix: bound by reading the matrix, which may be cut along its rows' length as well.

A library's product leaves multiprocessors idle where the matrix has few rows. Here each part of the length is
summed up by a program of its own, and whoever needs the product anyway (the norm behind it) adds the parts.
Weights in bytes (fp8 or int8) become numbers of the rows' type in registers, from which the tensor cores take
a product's first operand: the rows need not be quantised.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

_MOST_ROWS = 128
# Matrices with so many outputs keep the memory busy however they are cut.
_WIDE, _VERY_WIDE = 16384, 65536


class SkinnyTiling(NamedTuple):
    """What a program takes at a time, and into how many parts a row's length is cut."""

    rows: int
    outputs: int
    length: int
    parts: int
    num_warps: int
    num_stages: int


def skinny_tiling(
    rows: int, outputs: int, weight: torch.dtype, row: torch.dtype, may_cut: bool
) -> SkinnyTiling | None:
    """The fastest of those tried on an H200; None where another product is faster."""
    if not 1 < rows <= _MOST_ROWS:
        return None
    tile = max(16, triton.next_power_of_2(rows))
    if row.itemsize == 1:
        return _of_fp8_rows(tile, outputs, may_cut)
    if weight.itemsize == 1:
        # In fp8 more rows are multiplied in less time when they are quantised, too.
        return _of_bytes(tile, outputs, may_cut) if tile == 16 or weight == torch.int8 else None
    return SkinnyTiling(tile, 64, 128, 2, 4, 4) if may_cut and tile <= 64 else None


def _of_bytes(tile: int, outputs: int, may_cut: bool) -> SkinnyTiling | None:
    if may_cut:
        return SkinnyTiling(tile, 32, 128, 4, 2, 6)
    if tile > 32:
        return SkinnyTiling(tile, 128, 128, 1, 8, 4) if tile == 64 else None
    if outputs >= _VERY_WIDE:
        return SkinnyTiling(tile, 64, 256, 1, 2, 3)
    return SkinnyTiling(tile, 64, 128, 1, 2, 4) if outputs >= _WIDE else SkinnyTiling(tile, 32, 128, 1, 2, 6)


def _of_fp8_rows(tile: int, outputs: int, may_cut: bool) -> SkinnyTiling | None:
    if outputs >= _WIDE:
        return SkinnyTiling(tile, 128, 128, 1, 4, 4) if tile <= 64 else None
    parts = 1 if not may_cut else 2 if tile <= 64 else 4
    if tile <= 32:
        return SkinnyTiling(tile, 64, 256, parts, 4, 5)
    return SkinnyTiling(tile, 64, 128, parts, 4, 6 if tile == 64 else 4)


# Four weights at a time. What triton-lang makes of a conversion takes the slowest unit for each of them.
_FP8_TO_BF16 = tl.constexpr("""
{
    .reg .b16 low, high;
    .reg .b32 halves;
    .reg .f16 h<4>;
    .reg .f32 f<4>;
    mov.b32 {low, high}, $2;
    cvt.rn.f16x2.e4m3x2 halves, low;
    mov.b32 {h0, h1}, halves;
    cvt.rn.f16x2.e4m3x2 halves, high;
    mov.b32 {h2, h3}, halves;
    cvt.f32.f16 f0, h0;
    cvt.f32.f16 f1, h1;
    cvt.f32.f16 f2, h2;
    cvt.f32.f16 f3, h3;
    cvt.rn.bf16x2.f32 $0, f1, f0;
    cvt.rn.bf16x2.f32 $1, f3, f2;
}
""")


@triton.jit
def numbers_of_bytes(weight, dtype: tl.constexpr):
    """The weights in the rows' type, in which bytes are exact."""
    if weight.dtype == dtype:
        return weight
    if weight.dtype == tl.float8e4nv and dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(_FP8_TO_BF16, "=r,=r,r", [weight], tl.bfloat16, is_pure=True, pack=4)
    return weight.to(dtype)


@triton.jit(do_not_specialize=["count"])
def _multiply(
    out,
    rows,
    matrix,
    scales,
    row_scales,
    bias,
    count,
    outputs,
    length,
    IS_SCALED: tl.constexpr,
    IS_ROW_SCALED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    LENGTH: tl.constexpr,
    PARTS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    part = tl.program_id(2)
    steps = length // (LENGTH * PARTS)
    along = part * steps * LENGTH + tl.arange(0, LENGTH)
    weights = matrix + output.to(tl.int64)[:, None] * length + along[None, :]
    inputs = rows + row[None, :] * length + along[:, None]
    is_row = (row < count)[None, :]
    total = tl.zeros((OUTPUTS, ROWS), tl.float32)
    for _ in range(steps):
        weight = numbers_of_bytes(tl.load(weights, eviction_policy="evict_first"), rows.dtype.element_ty)
        total = tl.dot(weight, tl.load(inputs, mask=is_row, other=0.0), total, input_precision="ieee")
        weights += LENGTH
        inputs += LENGTH
    if IS_SCALED:
        total *= tl.load(scales + output)[:, None]
    if IS_ROW_SCALED:
        total *= tl.load(row_scales + row, mask=row < count, other=0.0)[None, :]
    if HAS_BIAS:
        total += tl.load(bias + output).to(tl.float32)[:, None]
    place = (part * count + row)[None, :] * outputs + output[:, None]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=is_row)


def suited_tiling(rows: torch.Tensor, matrix: torch.Tensor, may_cut: bool) -> SkinnyTiling | None:
    """How to multiply these rows; None where another product is faster or the matrix has odd sides."""
    outputs, length = matrix.shape
    tiling = skinny_tiling(len(rows), outputs, matrix.dtype, rows.dtype, may_cut)
    if tiling is None or outputs % tiling.outputs or length % (tiling.length * tiling.parts):
        return None
    return tiling


def skinny_product(
    rows: torch.Tensor,
    matrix: torch.Tensor,
    tiling: SkinnyTiling,
    *,
    scales: torch.Tensor | None = None,
    row_scales: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """rows · matrixᵀ + bias, whole in the rows' type, in `dtype` or in that of `out`.

    Where the tiling cuts, it comes in parts that are still to be added, (parts, rows, outputs) in fp32, and
    without a bias. Where there are `scales`, row i of the matrix (of bytes) is to be multiplied by scales[i];
    `row_scales` are those of the rows.
    """
    count, length = rows.shape
    outputs = len(matrix)
    if out is None:
        is_whole = tiling.parts == 1
        shape = (count, outputs) if is_whole else (tiling.parts, count, outputs)
        kind = (dtype or rows.dtype) if is_whole else torch.float32
        out = torch.empty(shape, dtype=kind, device=rows.device)
    _multiply[(triton.cdiv(count, tiling.rows), outputs // tiling.outputs, tiling.parts)](
        out,
        rows,
        matrix,
        rows if scales is None else scales,
        rows if row_scales is None else row_scales,
        rows if bias is None else bias,
        count,
        outputs,
        length,
        IS_SCALED=scales is not None,
        IS_ROW_SCALED=row_scales is not None,
        HAS_BIAS=bias is not None,
        ROWS=tiling.rows,
        OUTPUTS=tiling.outputs,
        LENGTH=tiling.length,
        PARTS=tiling.parts,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )
    return out
