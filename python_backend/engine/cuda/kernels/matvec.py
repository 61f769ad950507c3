"""One row against a matrix: bound by reading the matrix, so everything around the product is done with it."""

from __future__ import annotations

from typing import NamedTuple, TypedDict

import torch
import triton
import triton.language as tl

from python_backend.engine.cuda.kernels.activation import activated
from python_backend.engine.cuda.kernels.overlap import overlap_options, wait_for_predecessor


class MatvecTiling(NamedTuple):
    """Outputs and entries of the row that a program takes at a time, and its warps."""

    outputs: int
    length: int
    warps: int


def _tiling(is_scaled: bool, has_norm: bool, has_residual: bool, gated: bool) -> MatvecTiling:
    """The fastest of those tried on an H200."""
    if is_scaled:  # bytes
        if has_norm:
            return MatvecTiling(4, 4096, 8)
        return MatvecTiling(8, 1024, 4) if has_residual else MatvecTiling(4, 2048, 4)
    if gated:
        return MatvecTiling(2, 1024, 4)
    return MatvecTiling(4, 2048, 8) if has_norm else MatvecTiling(1, 2048, 4)


@triton.jit
def square_mean(x_row, K: tl.constexpr, BLOCK_K: tl.constexpr):
    total = tl.zeros((BLOCK_K,), tl.float32)
    for start in tl.static_range(0, K, BLOCK_K):
        columns = start + tl.arange(0, BLOCK_K)
        x = tl.load(x_row + columns, mask=columns < K, other=0.0).to(tl.float32)
        total += x * x
    return tl.sum(total, axis=0) / K


@triton.jit
def normed_entries(x, norm_weight, scale, columns, K: tl.constexpr):
    """Entries of the row, normed and weighed; rounded in between where the weight is."""
    normed = x.to(tl.float32) * scale
    if norm_weight.dtype.element_ty != tl.float32:
        normed = normed.to(x.dtype)
    return (normed * tl.load(norm_weight + columns, mask=columns < K, other=0.0)).to(x.dtype)


@triton.jit
def finished(
    out,
    result,
    up,
    bias,
    residual,
    rows,
    inside,
    N,
    HAS_RESIDUAL: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    GATED: tl.constexpr,
    IS_GELU: tl.constexpr,
):
    """Writes what the product gives once its bias, its activation and the residual are in."""
    if HAS_BIAS:
        result += tl.load(bias + rows, mask=inside, other=0.0).to(tl.float32)
    if GATED:
        if HAS_BIAS:
            up += tl.load(bias + N + rows, mask=inside, other=0.0).to(tl.float32)
        gate = result.to(out.dtype.element_ty).to(tl.float32)
        gated = activated(gate, IS_GELU).to(out.dtype.element_ty).to(tl.float32)
        result = gated * up.to(out.dtype.element_ty).to(tl.float32)
    if HAS_RESIDUAL:
        product = result.to(residual.dtype.element_ty).to(tl.float32)
        result = product + tl.load(residual + rows, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + rows, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _matvec(
    out,
    x_row,
    matrix,
    scales,
    norm_weight,
    residual,
    bias,
    epsilon,
    N,
    K: tl.constexpr,
    IS_SCALED: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    GATED: tl.constexpr,
    IS_GELU: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_predecessor(OVERLAPS)
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = rows < N
    start_of_row = matrix + rows.to(tl.int64)[:, None] * K
    if HAS_NORM:
        scale = tl.rsqrt(square_mean(x_row, K, BLOCK_K) + epsilon)
    total = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    total_up = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    for start in range(0, K, BLOCK_K):
        columns = start + tl.arange(0, BLOCK_K)
        mask = inside[:, None] & (columns < K)[None, :]
        weights = tl.load(
            start_of_row + columns[None, :], mask=mask, other=0.0, eviction_policy="evict_first"
        )
        x = tl.load(x_row + columns, mask=columns < K, other=0.0)
        if HAS_NORM:
            x = normed_entries(x, norm_weight, scale, columns, K)
        total += weights.to(tl.float32) * x.to(tl.float32)[None, :]
        if GATED:
            ups = tl.load(
                start_of_row + N.to(tl.int64) * K + columns[None, :],
                mask=mask,
                other=0.0,
                eviction_policy="evict_first",
            )
            total_up += ups.to(tl.float32) * x.to(tl.float32)[None, :]
    result, up = tl.sum(total, axis=1), tl.sum(total_up, axis=1)
    if IS_SCALED:
        result *= tl.load(scales + rows, mask=inside, other=0.0)
        if GATED:
            up *= tl.load(scales + N + rows, mask=inside, other=0.0)
    finished(out, result, up, bias, residual, rows, inside, N, HAS_RESIDUAL, HAS_BIAS, GATED, IS_GELU)


class Around(TypedDict, total=False):
    """What comes before and after a product with one row: see `matvec`."""

    norm: tuple[torch.Tensor, float] | None
    residual: torch.Tensor | None
    gated: bool
    is_gelu: bool


def matvec(
    x_row: torch.Tensor,
    matrix: torch.Tensor,
    out: torch.Tensor,
    *,
    scales: torch.Tensor | None = None,
    norm: tuple[torch.Tensor, float] | None = None,
    residual: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    gated: bool = False,
    is_gelu: bool = False,
    tiling: MatvecTiling | None = None,
) -> torch.Tensor:
    """out = matrix · x, where x may be normed first; with `gated` activate(gates · x) * (ups · x).

    `residual` is added to the product; it may be `out` itself. Where there are `scales`, row i of the matrix
    (in fp8) is to be multiplied by scales[i].
    """
    outputs, width = matrix.shape
    outputs = outputs // 2 if gated else outputs
    block_n, block_k, warps = tiling or _tiling(
        scales is not None, norm is not None, residual is not None, gated
    )
    _matvec[(triton.cdiv(outputs, block_n),)](
        out,
        x_row,
        matrix,
        x_row if scales is None else scales,
        x_row if norm is None else norm[0],
        out if residual is None else residual,
        matrix if bias is None else bias,
        0.0 if norm is None else norm[1],
        outputs,
        K=width,
        IS_SCALED=scales is not None,
        HAS_NORM=norm is not None,
        HAS_RESIDUAL=residual is not None,
        HAS_BIAS=bias is not None,
        GATED=gated,
        IS_GELU=is_gelu,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        num_warps=warps,
        **overlap_options(x_row),
    )
    return out
