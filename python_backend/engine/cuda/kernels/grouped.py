"""Products with matrices of levels in groups, 4 or 8 bits a weight, which become numbers in registers.

A step multiplies one stretch of inputs, all of one group, so that the group's scale is a factor of the
stretch's sums and no weight is ever rounded: sums += (levels · x) · scale + (sum of x) · offset. Weights are
the product's first operand, which the tensor cores take from registers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

# How levels lie in memory.
IN_BYTES, INT4_PAIRS, E2M1_PAIRS = (tl.constexpr(number) for number in range(3))


class GroupedArrays(NamedTuple):
    """A matrix of `outputs` rows and `length` inputs, or one for each expert, as the kernels read it.

    `levels` (…, outputs, bytes): int8 or e4m3; or uint8, where byte i of a stretch has inputs i and i +
    `stretch`. `scales` and `offsets` (…, groups, outputs). `stretch` inputs are of one group.
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
    """What a program takes at a time, and into how many parts the length is cut."""

    rows: int
    outputs: int
    parts: int
    num_warps: int
    num_stages: int


@triton.jit
def number_of(pairs, IS_HIGH: tl.constexpr, LAYOUT: tl.constexpr, dtype: tl.constexpr):
    """One level of each byte, as a number."""
    nibble = (pairs >> 4) if IS_HIGH else (pairs & 15)
    level = nibble.to(tl.int16)
    if LAYOUT == E2M1_PAIRS:
        size = level & 7
        size = tl.where(size < 2, size, (2 + (size & 1)) << tl.maximum((size >> 1) - 1, 0))
        level = tl.where(level > 7, 8 - size, 8 + size)
        # Twice what it stands for, and 8 more, so that both kinds are read in the same way.
        level = level + 8
    above = 16.0 if LAYOUT == E2M1_PAIRS else 8.0
    if dtype == tl.bfloat16:
        # 128 + n is a bfloat16 with n in its last bits: cheaper than a conversion.
        number = (level | 0x4300).to(tl.int16).to(tl.bfloat16, bitcast=True) - (128.0 + above)
    else:
        number = level.to(tl.float32) - above
    return number.to(dtype)


@triton.jit
def _add_stretch(
    total,
    numbers,
    first,
    x_rows,
    is_row,
    scale_rows,
    offset_rows,
    is_output,
    outputs,
    LENGTH: tl.constexpr,
    GROUP: tl.constexpr,
    STRETCH: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
):
    columns = first + tl.arange(0, STRETCH)
    x = tl.load(x_rows + columns[:, None], mask=is_row[None, :] & (columns < LENGTH)[:, None], other=0.0)
    group = first // GROUP * outputs
    # The last pair of stretches may have one beyond the end.
    is_there = is_output & (first < LENGTH)
    scale = tl.load(scale_rows + group, mask=is_there, other=0.0).to(tl.float32)
    total += tl.dot(numbers, x, input_precision="ieee") * scale[:, None]
    if HAS_OFFSETS:
        offset = tl.load(offset_rows + group, mask=is_there, other=0.0).to(tl.float32)
        total += offset[:, None] * tl.sum(x.to(tl.float32), axis=0)[None, :]
    return total


@triton.jit
def add_grouped(
    total,
    step,
    x_rows,
    is_row,
    level_rows,
    scale_rows,
    offset_rows,
    is_output,
    outputs,
    WIDTH: tl.constexpr,
    LENGTH: tl.constexpr,
    GROUP: tl.constexpr,
    STRETCH: tl.constexpr,
    LAYOUT: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    dtype: tl.constexpr,
):
    """total (outputs, rows) += what the bytes from step * STRETCH on give.

    `x_rows` (1, rows) and `level_rows` (outputs, 1) point at rows, `scale_rows` and `offset_rows` (outputs)
    at the first group's.
    """
    place = step * STRETCH + tl.arange(0, STRETCH)
    levels = tl.load(
        level_rows + place[None, :],
        mask=is_output[:, None] & (place < WIDTH)[None, :],
        other=0.0 if LAYOUT == IN_BYTES else 0,
        eviction_policy="evict_first",
    )
    if LAYOUT == IN_BYTES:
        total = _add_stretch(
            total, levels.to(dtype), step * STRETCH, x_rows, is_row, scale_rows, offset_rows, is_output,
            outputs, LENGTH, GROUP, STRETCH, HAS_OFFSETS,
        )  # fmt: skip
    else:
        for half in tl.static_range(2):
            total = _add_stretch(
                total, number_of(levels, half == 1, LAYOUT, dtype), (2 * step + half) * STRETCH, x_rows,
                is_row, scale_rows, offset_rows, is_output, outputs, LENGTH, GROUP, STRETCH, HAS_OFFSETS,
            )  # fmt: skip
    return total


@triton.jit(do_not_specialize=["count"])
def _multiply(
    out,
    rows,
    levels,
    scales,
    offsets,
    bias,
    count,
    outputs,
    WIDTH: tl.constexpr,
    LENGTH: tl.constexpr,
    GROUP: tl.constexpr,
    STRETCH: tl.constexpr,
    LAYOUT: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    PARTS: tl.constexpr,
):
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    part = tl.program_id(2)
    is_row, is_output = row < count, output < outputs
    total = tl.zeros((OUTPUTS, ROWS), tl.float32)
    steps: tl.constexpr = (WIDTH + STRETCH * PARTS - 1) // (STRETCH * PARTS)
    for step in range(part * steps, part * steps + steps):
        total = add_grouped(
            total,
            step,
            rows + row.to(tl.int64)[None, :] * LENGTH,
            is_row,
            levels + output.to(tl.int64)[:, None] * WIDTH,
            scales + output,
            offsets + output,
            is_output,
            outputs,
            WIDTH,
            LENGTH,
            GROUP,
            STRETCH,
            LAYOUT,
            HAS_OFFSETS,
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
        "HAS_OFFSETS": matrix.offsets is not None,
    }


def grouped_tiling(rows: int, outputs: int, may_cut: bool) -> GroupedTiling:
    """Few rows: as many programs as keep the memory busy; many: what the tensor cores like."""
    if rows > 64:
        return GroupedTiling(128, 128, 1, 8, 3)
    wide = triton.next_power_of_2(max(16, rows))
    tiles = triton.cdiv(outputs, 64)
    if may_cut and tiles < 264:
        return GroupedTiling(wide, 64, min(4, triton.cdiv(264, tiles)), 4, 4)
    return GroupedTiling(wide, 64 if tiles >= 264 else 32, 1, 4, 4)


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
    grid = (triton.cdiv(matrix.outputs, tiling.outputs), triton.cdiv(count, tiling.rows), tiling.parts)
    _multiply[grid](
        out,
        rows,
        matrix.levels,
        matrix.scales,
        matrix.scales if matrix.offsets is None else matrix.offsets,
        rows if bias is None else bias,
        count,
        matrix.outputs,
        HAS_BIAS=bias is not None,
        ROWS=tiling.rows,
        OUTPUTS=tiling.outputs,
        PARTS=tiling.parts,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
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
    HAS_OFFSETS: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    step = tl.program_id(1)
    is_output = output < outputs
    place = step * STRETCH + tl.arange(0, STRETCH)
    row = output.to(tl.int64)[:, None]
    codes = tl.load(
        levels + row * WIDTH + place[None, :],
        mask=is_output[:, None] & (place < WIDTH)[None, :],
        other=0.0 if LAYOUT == IN_BYTES else 0,
    )
    for half in tl.static_range(1 if LAYOUT == IN_BYTES else 2):
        if LAYOUT == IN_BYTES:
            first = step * STRETCH
            numbers = codes.to(tl.float32)
        else:
            first = (2 * step + half) * STRETCH
            numbers = number_of(codes, half == 1, LAYOUT, tl.float32)
        group = first // GROUP * outputs
        is_there = is_output & (first < LENGTH)
        weights = numbers * tl.load(scales + group + output, mask=is_there, other=0.0).to(tl.float32)[:, None]
        if HAS_OFFSETS:
            weights += tl.load(offsets + group + output, mask=is_there, other=0.0).to(tl.float32)[:, None]
        columns = first + tl.arange(0, STRETCH)
        inside = is_output[:, None] & (columns < LENGTH)[None, :]
        tl.store(out + row * LENGTH + columns[None, :], weights.to(out.dtype.element_ty), mask=inside)


def written_out(matrix: GroupedArrays, dtype: torch.dtype) -> torch.Tensor:
    """(outputs, length): what the levels stand for."""
    out = torch.empty(matrix.outputs, matrix.length, dtype=dtype, device=matrix.levels.device)
    grid = (triton.cdiv(matrix.outputs, 32), triton.cdiv(matrix.levels.shape[-1], matrix.stretch))
    _write_out[grid](
        out,
        matrix.levels,
        matrix.scales,
        matrix.scales if matrix.offsets is None else matrix.offsets,
        matrix.outputs,
        OUTPUTS=32,
        num_warps=4,
        **constants(matrix),
    )
    return out
