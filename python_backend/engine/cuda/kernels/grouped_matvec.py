"""One row against a matrix of levels in groups, together with what comes before and after the product."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from python_backend.engine.cuda.kernels.grouped import GroupedArrays, constants
from python_backend.engine.cuda.kernels.grouped_numbers import IN_BYTES, excess, floats_of
from python_backend.engine.cuda.kernels.matvec import finished, normed_entries, square_mean
from python_backend.engine.cuda.kernels.overlap import overlap_options, wait_for_predecessor

_NORM_BLOCK = 1024


class GroupedMatvecTiling(NamedTuple):
    """Outputs and words that a program takes at a time, and its warps: eight words are a thread's."""

    outputs: int
    words: int
    warps: int


def _tiling(matrix: GroupedArrays) -> GroupedMatvecTiling:
    width = matrix.levels.shape[-1]
    if width >= 1024:
        return GroupedMatvecTiling(16, 1024, 4)
    return GroupedMatvecTiling(8, 512, 2) if width >= 512 else GroupedMatvecTiling(8, 128, 1)


@triton.jit
def _row_of(x_row, norm_weight, scale, columns, LENGTH: tl.constexpr, HAS_NORM: tl.constexpr):
    x = tl.load(x_row + columns, mask=columns < LENGTH, other=0.0)
    if HAS_NORM:
        x = normed_entries(x, norm_weight, scale, columns, LENGTH)
    return x.to(tl.float32)


@triton.jit
def _of_threads(entries, OUTPUTS: tl.constexpr, WORDS: tl.constexpr, THREAD: tl.constexpr):
    """The sums of what lies in one thread."""
    return tl.sum(tl.reshape(entries, (OUTPUTS, WORDS // THREAD, THREAD)), axis=2)


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
    PER_STEP: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    GATED: tl.constexpr,
    IS_GELU: tl.constexpr,
    OUTPUTS: tl.constexpr,
    WORDS: tl.constexpr,
    NORM_BLOCK: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_predecessor(OVERLAPS)
    # Gated, a program's second half of outputs are the ups of its first.
    DONE: tl.constexpr = OUTPUTS // 2 if GATED else OUTPUTS
    done = tl.program_id(0) * DONE + tl.arange(0, DONE)
    output = tl.program_id(0) * DONE + tl.arange(0, OUTPUTS) % DONE
    is_output = output < N
    output += tl.arange(0, OUTPUTS) // DONE * N
    scale = 1.0
    if HAS_NORM:
        scale = tl.rsqrt(square_mean(x_row, LENGTH, NORM_BLOCK) + epsilon)
    PER_WORD: tl.constexpr = 1 if LAYOUT == IN_BYTES else 4
    PER_SCALE: tl.constexpr = PER_WORD // PER_STEP
    THREAD: tl.constexpr = 8
    is_quick: tl.constexpr = x_row.dtype.element_ty == tl.bfloat16
    total = tl.zeros((OUTPUTS, WORDS // THREAD), tl.float32)
    for start in range(0, WIDTH, WORDS):
        place = start + tl.arange(0, WORDS)
        of_thread = start + tl.arange(0, WORDS // THREAD) * THREAD
        codes = tl.load(
            levels + output.to(tl.int64)[:, None] * WIDTH + place[None, :],
            mask=is_output[:, None] & (place < WIDTH)[None, :],
            other=0.0 if LAYOUT == IN_BYTES else 0,
            eviction_policy="evict_first",
        )
        numbers = floats_of(codes, LAYOUT, is_quick)
        for each in tl.static_range(PER_WORD):
            columns = (place // STRETCH * PER_WORD + each) * STRETCH + place % STRETCH
            x = _row_of(x_row, norm_weight, scale, columns, LENGTH, HAS_NORM)
            if each % PER_SCALE == 0:
                sums = tl.zeros((OUTPUTS, WORDS // THREAD), tl.float32)
                x_sums = tl.zeros((1, WORDS // THREAD), tl.float32)
                too_much = tl.zeros((1, WORDS // THREAD), tl.float32)
            sums += _of_threads(numbers[each] * x[None, :], OUTPUTS, WORDS, THREAD)
            if HAS_OFFSETS or excess(each, LAYOUT, is_quick) > 0:
                x_sum = _of_threads(x[None, :], 1, WORDS, THREAD)
                x_sums += x_sum
                too_much += x_sum * excess(each, LAYOUT, is_quick)
            if each % PER_SCALE == PER_SCALE - 1:
                first = (of_thread // STRETCH * PER_WORD + each) * STRETCH
                at = (first // GROUP * all_outputs)[None, :] + output[:, None]
                is_there = is_output[:, None] & (first < LENGTH)[None, :]
                total += (sums - too_much) * tl.load(scales + at, mask=is_there, other=0.0).to(tl.float32)
                if HAS_OFFSETS:
                    total += x_sums * tl.load(offsets + at, mask=is_there, other=0.0).to(tl.float32)
    result = tl.sum(total, axis=1)
    up = result
    if GATED:
        result, up = tl.split(tl.trans(tl.reshape(result, (2, DONE))))
    finished(
        out, result, up, bias, residual, done, done < N, N, HAS_RESIDUAL, HAS_BIAS, GATED, IS_GELU,
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
    tiling: GroupedMatvecTiling | None = None,
) -> torch.Tensor:
    """As `matvec`."""
    outputs = matrix.outputs // 2 if gated else matrix.outputs
    tiling = tiling or _tiling(matrix)
    _grouped_matvec[(triton.cdiv(matrix.outputs, tiling.outputs),)](
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
        OUTPUTS=tiling.outputs,
        WORDS=tiling.words,
        NORM_BLOCK=_NORM_BLOCK,
        num_warps=tiling.warps,
        **constants(matrix),
        **overlap_options(x_row),
    )
    return out
