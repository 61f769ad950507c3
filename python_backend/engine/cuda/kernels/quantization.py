"""fp8 (e4m3): rows are quantised as they come; a single row is multiplied with weights read as fp8."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from python_backend.engine.cuda.kernels.activation import activated
from python_backend.engine.cuda.kernels.overlap import overlap_options, wait_for_predecessor

# The largest number of e4m3.
FP8_MAX = 448.0
# A row of zeros has a scale too.
SMALLEST_MAX = 1e-12


@triton.jit
def _quantize_rows(
    out,
    scales,
    rows,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    LARGEST: tl.constexpr,
    TINY: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_predecessor(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    x = tl.load(rows + row * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), axis=0), TINY) / LARGEST
    tl.store(scales + row, scale)
    tl.store(out + row * WIDTH + columns, (x / scale).to(out.dtype.element_ty), mask=inside)


def quantize_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row in fp8, and what it is to be multiplied by, (rows, 1) in fp32."""
    count, width = rows.shape
    out = torch.empty(count, width, dtype=torch.float8_e4m3fn, device=rows.device)
    scales = torch.empty(count, 1, dtype=torch.float32, device=rows.device)
    block = triton.next_power_of_2(width)
    _quantize_rows[(count,)](
        out,
        scales,
        rows,
        WIDTH=width,
        BLOCK=block,
        LARGEST=FP8_MAX,
        TINY=SMALLEST_MAX,
        num_warps=4 if block <= 4096 else 16,
        **overlap_options(rows),
    )
    return out, scales


@triton.jit
def _row_scale(x_row, epsilon, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in tl.static_range(0, WIDTH, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(x_row + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)
        squares += x * x
    return tl.rsqrt(tl.sum(squares, axis=0) / WIDTH + epsilon)


@triton.jit
def _scaled_matvec(
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
    HAS_NORM: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    GATED: tl.constexpr,
    IS_GELU: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """As matvec's kernel, with one scale for each row of the matrix."""
    wait_for_predecessor(OVERLAPS)
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = rows < N
    start_of_row = matrix + rows.to(tl.int64)[:, None] * K
    if HAS_NORM:
        row_scale = _row_scale(x_row, epsilon, K, BLOCK_K)
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
            normed = (x.to(tl.float32) * row_scale).to(x.dtype)
            x = normed * tl.load(norm_weight + columns, mask=columns < K, other=0.0)
        total += weights.to(tl.float32) * x.to(tl.float32)[None, :]
        if GATED:
            ups = tl.load(
                start_of_row + N.to(tl.int64) * K + columns[None, :],
                mask=mask,
                other=0.0,
                eviction_policy="evict_first",
            )
            total_up += ups.to(tl.float32) * x.to(tl.float32)[None, :]
    result = tl.sum(total, axis=1) * tl.load(scales + rows, mask=inside, other=0.0)
    if HAS_BIAS:
        result += tl.load(bias + rows, mask=inside, other=0.0).to(tl.float32)
    if GATED:
        up = tl.sum(total_up, axis=1) * tl.load(scales + N + rows, mask=inside, other=0.0)
        if HAS_BIAS:
            up += tl.load(bias + N + rows, mask=inside, other=0.0).to(tl.float32)
        gate = result.to(out.dtype.element_ty).to(tl.float32)
        gated = activated(gate, IS_GELU).to(out.dtype.element_ty).to(tl.float32)
        result = gated * up.to(out.dtype.element_ty).to(tl.float32)
    if HAS_RESIDUAL:
        product = result.to(residual.dtype.element_ty).to(tl.float32)
        result = product + tl.load(residual + rows, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + rows, result.to(out.dtype.element_ty), mask=inside)


def scaled_matvec(
    x_row: torch.Tensor,
    matrix: torch.Tensor,
    out: torch.Tensor,
    *,
    scales: torch.Tensor,
    norm: tuple[torch.Tensor, float] | None = None,
    residual: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    gated: bool = False,
    is_gelu: bool = False,
    block_n: int = 4,
    block_k: int = 1024,
    warps: int = 4,
) -> torch.Tensor:
    """As `matvec`, on a matrix in fp8 of which row i is to be multiplied by scales[i]; x stays as it is."""
    outputs, width = matrix.shape
    outputs = outputs // 2 if gated else outputs
    _scaled_matvec[(triton.cdiv(outputs, block_n),)](
        out,
        x_row,
        matrix,
        scales,
        x_row if norm is None else norm[0],
        out if residual is None else residual,
        scales if bias is None else bias,
        0.0 if norm is None else norm[1],
        outputs,
        K=width,
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
