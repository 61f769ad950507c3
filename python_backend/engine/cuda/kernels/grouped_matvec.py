"""One row against a matrix of levels in groups, together with what comes before and after the product."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from python_backend.engine.cuda.kernels.grouped import IN_BYTES, GroupedArrays, constants, number_of
from python_backend.engine.cuda.kernels.matvec import finished, normed_entries, square_mean
from python_backend.engine.cuda.kernels.overlap import overlap_options, wait_for_predecessor

_OUTPUTS, _WARPS = 8, 4
_NORM_BLOCK = 1024


@triton.jit
def _row_of(
    x_row, norm_weight, scale, first, LENGTH: tl.constexpr, STRETCH: tl.constexpr, HAS_NORM: tl.constexpr
):
    columns = first + tl.arange(0, STRETCH)
    x = tl.load(x_row + columns, mask=columns < LENGTH, other=0.0)
    if HAS_NORM:
        x = normed_entries(x, norm_weight, scale, columns, LENGTH)
    return x.to(tl.float32)


@triton.jit
def _add(
    total,
    numbers,
    x,
    first,
    scale_rows,
    offset_rows,
    is_output,
    all_outputs,
    LENGTH: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
):
    group = first // GROUP * all_outputs
    is_there = is_output & (first < LENGTH)
    size = tl.load(scale_rows + group, mask=is_there, other=0.0).to(tl.float32)
    weights = numbers * size[:, None]
    if HAS_OFFSETS:
        weights += tl.load(offset_rows + group, mask=is_there, other=0.0).to(tl.float32)[:, None]
    return total + weights * x[None, :]


@triton.jit
def _grouped_matvec(
    out,
    x_row,
    levels,
    scales,
    offsets,
    norm_weight,
    residual,
    bias,
    epsilon,
    N,
    all_outputs,
    WIDTH: tl.constexpr,
    LENGTH: tl.constexpr,
    GROUP: tl.constexpr,
    STRETCH: tl.constexpr,
    LAYOUT: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    GATED: tl.constexpr,
    IS_GELU: tl.constexpr,
    OUTPUTS: tl.constexpr,
    NORM_BLOCK: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_predecessor(OVERLAPS)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = output < N
    scale = 1.0
    if HAS_NORM:
        scale = tl.rsqrt(square_mean(x_row, LENGTH, NORM_BLOCK) + epsilon)
    total = tl.zeros((OUTPUTS, STRETCH), tl.float32)
    total_up = tl.zeros((OUTPUTS, STRETCH), tl.float32)
    halves: tl.constexpr = 1 if LAYOUT == IN_BYTES else 2
    for step in range((WIDTH + STRETCH - 1) // STRETCH):
        place = step * STRETCH + tl.arange(0, STRETCH)
        mask = is_output[:, None] & (place < WIDTH)[None, :]
        at = levels + output.to(tl.int64)[:, None] * WIDTH + place[None, :]
        codes = tl.load(at, mask=mask, other=0.0 if LAYOUT == IN_BYTES else 0, eviction_policy="evict_first")
        if GATED:
            codes_up = tl.load(
                at + N.to(tl.int64) * WIDTH,
                mask=mask,
                other=0.0 if LAYOUT == IN_BYTES else 0,
                eviction_policy="evict_first",
            )
        for half in tl.static_range(halves):
            first = (halves * step + half) * STRETCH
            x = _row_of(x_row, norm_weight, scale, first, LENGTH, STRETCH, HAS_NORM)
            if LAYOUT == IN_BYTES:
                numbers = codes.to(tl.float32)
            else:
                numbers = number_of(codes, half == 1, LAYOUT, tl.float32)
            total = _add(
                total, numbers, x, first, scales + output, offsets + output, is_output, all_outputs, LENGTH,
                GROUP, HAS_OFFSETS,
            )  # fmt: skip
            if GATED:
                if LAYOUT == IN_BYTES:
                    ups = codes_up.to(tl.float32)
                else:
                    ups = number_of(codes_up, half == 1, LAYOUT, tl.float32)
                total_up = _add(
                    total_up, ups, x, first, scales + N + output, offsets + N + output, is_output,
                    all_outputs, LENGTH, GROUP, HAS_OFFSETS,
                )  # fmt: skip
    finished(
        out, tl.sum(total, axis=1), tl.sum(total_up, axis=1), bias, residual, output, is_output, N,
        HAS_RESIDUAL, HAS_BIAS, GATED, IS_GELU,
    )  # fmt: skip


def grouped_matvec(
    x_row: torch.Tensor,
    matrix: GroupedArrays,
    out: torch.Tensor,
    *,
    norm: tuple[torch.Tensor, float] | None = None,
    residual: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    gated: bool = False,
    is_gelu: bool = False,
) -> torch.Tensor:
    """As `matvec`."""
    outputs = matrix.outputs // 2 if gated else matrix.outputs
    _grouped_matvec[(triton.cdiv(outputs, _OUTPUTS),)](
        out,
        x_row,
        matrix.levels,
        matrix.scales,
        matrix.scales if matrix.offsets is None else matrix.offsets,
        x_row if norm is None else norm[0],
        out if residual is None else residual,
        x_row if bias is None else bias,
        0.0 if norm is None else norm[1],
        outputs,
        matrix.outputs,
        HAS_NORM=norm is not None,
        HAS_RESIDUAL=residual is not None,
        HAS_BIAS=bias is not None,
        GATED=gated,
        IS_GELU=is_gelu,
        OUTPUTS=_OUTPUTS,
        NORM_BLOCK=_NORM_BLOCK,
        num_warps=_WARPS,
        **constants(matrix),
        **overlap_options(x_row),
    )
    return out
