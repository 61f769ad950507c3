"""Products with matrices of levels in groups, 4 or 8 bits a weight, which become numbers in registers.

A stretch of inputs is of one group, so that its scale is a factor of the stretch's sums and no weight is
rounded: sums += (levels · x) · scale + (sum of x) · offset. With many rows that is more work than to scale
the weights themselves, which then are those of a matrix in the rows' type. Weights are the product's first
operand, which the tensor cores take from registers.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from python_backend.engine.cuda.kernels.grouped_numbers import IN_BYTES, numbers_of, scaled_numbers_of

# From more rows on it is less work to scale weights than sums.
MOST_ROWS_BY_SUMS = tl.constexpr(64)
_WRITTEN_AT_ONCE = 64
# Matrices with so many outputs keep the memory busy however they are cut.
_WIDE = 16384


class GroupedArrays(NamedTuple):
    """A matrix of `outputs` rows and `length` inputs, or one for each expert, as the kernels read it.

    `levels` (…, outputs, width): int8 or e4m3; or int16, where word i of four stretches has the i-th input of
    each. `scales` and `offsets` (…, groups, outputs). `stretch` inputs are of one group.
    """

    levels: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None
    layout: int
    outputs: int
    length: int
    group: int
    stretch: int


class GroupedTiling(NamedTuple):
    """What a program takes at a time, into how many parts the length is cut, and what is scaled."""

    rows: int
    outputs: int
    parts: int
    num_warps: int
    num_stages: int
    scales_sums: bool


@triton.jit
def _sizes(
    sizes,
    step,
    is_output,
    outputs,
    LENGTH: tl.constexpr,
    GROUP: tl.constexpr,
    STRETCH: tl.constexpr,
    PER_WORD: tl.constexpr,
    PER_STEP: tl.constexpr,
):
    """Those of the groups of a step, one after the other."""
    first = step * (PER_WORD * STRETCH)
    found = ()
    for each in tl.static_range(PER_STEP):
        start = first + each * (PER_WORD // PER_STEP * STRETCH)
        size = tl.load(sizes + start // GROUP * outputs, mask=is_output & (start < LENGTH), other=0.0)
        found += (size,)  # type: ignore[assignment]
    return found


@triton.jit
def _inputs(x_rows, is_row, first, COUNT: tl.constexpr, LENGTH: tl.constexpr, IS_PADDED: tl.constexpr):
    columns = first + tl.arange(0, COUNT)[:, None]
    inside = is_row[None, :]
    if IS_PADDED:
        inside = inside & (columns < LENGTH)
    return tl.load(x_rows + columns, mask=inside, other=0.0)


@triton.jit
def grouped_total(
    x_rows,
    is_row,
    level_rows,
    scale_rows,
    offset_rows,
    is_output,
    outputs,
    begin,
    end,
    LENGTH: tl.constexpr,
    GROUP: tl.constexpr,
    STRETCH: tl.constexpr,
    LAYOUT: tl.constexpr,
    PER_STEP: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    SCALES_SUMS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STAGES: tl.constexpr,
    dtype: tl.constexpr,
):
    """(outputs, rows): what the steps from `begin` to `end` give.

    `x_rows` (1, rows) and `level_rows` (outputs, 1) point at rows, `scale_rows` and `offset_rows` (outputs)
    at the first group's.
    """
    PER_WORD: tl.constexpr = 1 if LAYOUT == IN_BYTES else 4
    PER_SCALE: tl.constexpr = PER_WORD // PER_STEP
    IS_PADDED: tl.constexpr = LENGTH % (PER_WORD * STRETCH) != 0
    along = tl.arange(0, STRETCH)
    total = tl.zeros((OUTPUTS, ROWS), tl.float32)
    ones = tl.full((OUTPUTS, STRETCH), 1.0, dtype)
    for step in tl.range(begin, end, num_stages=STAGES):
        levels = tl.load(
            level_rows + (step * STRETCH + along)[None, :],
            mask=is_output[:, None],
            other=0.0 if LAYOUT == IN_BYTES else 0,
            eviction_policy="evict_first",
        )
        scales = _sizes(scale_rows, step, is_output, outputs, LENGTH, GROUP, STRETCH, PER_WORD, PER_STEP)
        offsets = scales
        if HAS_OFFSETS:
            offsets = _sizes(
                offset_rows, step, is_output, outputs, LENGTH, GROUP, STRETCH, PER_WORD, PER_STEP
            )
        if SCALES_SUMS:
            numbers = numbers_of(levels, LAYOUT, dtype)
            for each in tl.static_range(PER_WORD):
                x = _inputs(x_rows, is_row, (PER_WORD * step + each) * STRETCH, STRETCH, LENGTH, IS_PADDED)
                if each % PER_SCALE == 0:
                    sums = tl.zeros((OUTPUTS, ROWS), tl.float32)
                    row_sums = tl.zeros((OUTPUTS, ROWS), tl.float32)
                sums = tl.dot(numbers[each], x, sums, input_precision="ieee")
                if HAS_OFFSETS:
                    row_sums = tl.dot(ones, x, row_sums, input_precision="ieee")
                if each % PER_SCALE == PER_SCALE - 1:
                    total += sums * scales[each // PER_SCALE].to(tl.float32)[:, None]
                    if HAS_OFFSETS:
                        total += row_sums * offsets[each // PER_SCALE].to(tl.float32)[:, None]
        else:
            numbers = scaled_numbers_of(levels, scales, offsets, HAS_OFFSETS, LAYOUT, dtype)
            weights = numbers[0]
            if PER_WORD == 4:
                quarters = tl.join(tl.join(numbers[0], numbers[2]), tl.join(numbers[1], numbers[3]))
                weights = tl.reshape(tl.permute(quarters, (0, 2, 3, 1)), (OUTPUTS, PER_WORD * STRETCH))
            x = _inputs(x_rows, is_row, PER_WORD * step * STRETCH, PER_WORD * STRETCH, LENGTH, IS_PADDED)
            total = tl.dot(weights, x, total, input_precision="ieee")
    return total


@triton.jit(do_not_specialize=["count", "steps"])
def _multiply(
    out,
    rows,
    levels,
    scales,
    offsets,
    bias,
    count,
    outputs,
    steps,
    WIDTH: tl.constexpr,
    LENGTH: tl.constexpr,
    GROUP: tl.constexpr,
    STRETCH: tl.constexpr,
    LAYOUT: tl.constexpr,
    PER_STEP: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SCALES_SUMS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STAGES: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    part = tl.program_id(2)
    is_row, is_output = row < count, output < outputs
    total = grouped_total(
        rows + row.to(tl.int64)[None, :] * LENGTH,
        is_row,
        levels + output.to(tl.int64)[:, None] * WIDTH,
        scales + output,
        offsets + output,
        is_output,
        outputs,
        part * steps,
        tl.minimum(part * steps + steps, WIDTH // STRETCH),
        LENGTH,
        GROUP,
        STRETCH,
        LAYOUT,
        PER_STEP,
        HAS_OFFSETS,
        SCALES_SUMS,
        ROWS,
        OUTPUTS,
        STAGES,
        rows.dtype.element_ty,
    )
    if HAS_BIAS:
        total += tl.load(bias + output, mask=is_output, other=0.0).to(tl.float32)[:, None]
    place = (part * count + row).to(tl.int64)[None, :] * outputs + output[:, None]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=is_output[:, None] & is_row[None, :])


def constants(matrix: GroupedArrays) -> dict[str, Any]:
    """What the kernels are compiled for."""
    return {
        "WIDTH": matrix.levels.shape[-1],
        "LENGTH": matrix.length,
        "GROUP": matrix.group,
        "STRETCH": matrix.stretch,
        "LAYOUT": matrix.layout,
        "PER_STEP": _groups_per_step(matrix),
        "HAS_OFFSETS": matrix.offsets is not None,
    }


def _groups_per_step(matrix: GroupedArrays) -> int:
    stretches = 1 if matrix.layout == IN_BYTES.value else 4
    return stretches // math.gcd(stretches, matrix.group // matrix.stretch)


def grouped_tiling(rows: int, outputs: int, may_cut: bool) -> GroupedTiling:
    """The fastest of those tried on an H200."""
    tile = max(8, triton.next_power_of_2(rows))
    if tile <= MOST_ROWS_BY_SUMS.value:
        return _of_few_rows(tile, outputs >= _WIDE, may_cut)
    if may_cut:
        return GroupedTiling(min(tile, 256), 128, 4 if tile <= 256 else 2, 8, 3, False)
    if outputs >= _WIDE or tile > 256:
        return GroupedTiling(128, 256, 1, 8, 3, False)
    return GroupedTiling(tile // 2, 128, 1, 8, 3, False)


def _of_few_rows(tile: int, is_wide: bool, may_cut: bool) -> GroupedTiling:
    if may_cut:
        return GroupedTiling(tile, 64, 4, 4 if tile > 16 else 2, 6 if tile == 8 else 4, True)
    if is_wide:
        return GroupedTiling(tile, 128, 1, 4, 4, True)
    return GroupedTiling(tile, 64, 1, 4, 6, True) if tile > 16 else GroupedTiling(tile, 32, 1, 2, 7, True)


def grouped_product(
    rows: torch.Tensor,
    matrix: GroupedArrays,
    bias: torch.Tensor | None = None,
    in_parts: bool = False,
    tiling: GroupedTiling | None = None,
) -> torch.Tensor:
    """rows · matrixᵀ + bias; with `in_parts` (parts, rows, outputs) in fp32, which are still to be added."""
    count = len(rows)
    tiling = tiling or grouped_tiling(count, matrix.outputs, in_parts)
    shape = (tiling.parts, count, matrix.outputs)
    out = torch.empty(shape, dtype=torch.float32 if in_parts else rows.dtype, device=rows.device)
    grid = (triton.cdiv(count, tiling.rows), triton.cdiv(matrix.outputs, tiling.outputs), tiling.parts)
    _multiply[grid](
        out,
        rows,
        matrix.levels,
        matrix.scales,
        matrix.scales if matrix.offsets is None else matrix.offsets,
        rows if bias is None else bias,
        count,
        matrix.outputs,
        triton.cdiv(matrix.levels.shape[-1] // matrix.stretch, tiling.parts),
        HAS_BIAS=bias is not None,
        SCALES_SUMS=tiling.scales_sums,
        ROWS=tiling.rows,
        OUTPUTS=tiling.outputs,
        num_warps=tiling.num_warps,
        STAGES=tiling.num_stages,
        **constants(matrix),
    )
    return out if in_parts else out[0]


@triton.jit
def _write_out(
    out,
    levels,
    scales,
    offsets,
    outputs,
    WIDTH: tl.constexpr,
    LENGTH: tl.constexpr,
    GROUP: tl.constexpr,
    STRETCH: tl.constexpr,
    LAYOUT: tl.constexpr,
    PER_STEP: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    PER_WORD: tl.constexpr = 1 if LAYOUT == IN_BYTES else 4
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    step = tl.program_id(0)
    is_output = output < outputs
    along = tl.arange(0, STRETCH)
    row = output.to(tl.int64)[:, None]
    codes = tl.load(
        levels + row * WIDTH + (step * STRETCH + along)[None, :],
        mask=is_output[:, None],
        other=0.0 if LAYOUT == IN_BYTES else 0,
    )
    sizes = _sizes(scales + output, step, is_output, outputs, LENGTH, GROUP, STRETCH, PER_WORD, PER_STEP)
    more = sizes
    if HAS_OFFSETS:
        more = _sizes(offsets + output, step, is_output, outputs, LENGTH, GROUP, STRETCH, PER_WORD, PER_STEP)
    weights = scaled_numbers_of(codes, sizes, more, HAS_OFFSETS, LAYOUT, out.dtype.element_ty)
    for each in tl.static_range(PER_WORD):
        columns = (PER_WORD * step + each) * STRETCH + along
        inside = is_output[:, None] & (columns < LENGTH)[None, :]
        tl.store(out + row * LENGTH + columns[None, :], weights[each], mask=inside)


def written_out(matrix: GroupedArrays, dtype: torch.dtype) -> torch.Tensor:
    """(outputs, length): what the levels stand for."""
    out = torch.empty(matrix.outputs, matrix.length, dtype=dtype, device=matrix.levels.device)
    grid = (matrix.levels.shape[-1] // matrix.stretch, triton.cdiv(matrix.outputs, _WRITTEN_AT_ONCE))
    _write_out[grid](
        out,
        matrix.levels,
        matrix.scales,
        matrix.scales if matrix.offsets is None else matrix.offsets,
        matrix.outputs,
        OUTPUTS=_WRITTEN_AT_ONCE,
        num_warps=4,
        **constants(matrix),
    )
    return out
