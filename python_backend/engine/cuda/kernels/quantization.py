"""fp8 (e4m3): rows are quantised as they come."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

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
