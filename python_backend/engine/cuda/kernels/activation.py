"""The gated activation between the two products of a feed-forward layer."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from python_backend.engine.cuda.kernels.overlap import overlap_options, wait_for_predecessor

_BLOCK = 1024


@triton.jit
def activated(gate, IS_GELU: tl.constexpr):
    """silu, or gelu by its tanh approximation; fp32 in, fp32 out."""
    if IS_GELU:
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        # 1 + tanh(x) = 2 sigmoid(2x)
        return gate * tl.sigmoid(2.0 * inner)
    return gate * tl.sigmoid(gate)


@triton.jit
def clamped_swiglu(gate, up, LIMIT: tl.constexpr):
    """gpt-oss's: both are clamped, and one is added to the up; fp32 in, fp32 out."""
    gate = tl.minimum(gate, LIMIT)
    up = tl.minimum(tl.maximum(up, -LIMIT), LIMIT)
    return gate * tl.sigmoid(1.702 * gate) * (up + 1.0)


@triton.jit
def _activate_multiply(
    out, gate_up, width, IS_GELU: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr
):
    wait_for_predecessor(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gate = tl.load(gate_up + row * 2 * width + columns, mask=inside, other=0.0)
    up = tl.load(gate_up + row * 2 * width + width + columns, mask=inside, other=0.0)
    gated = activated(gate.to(tl.float32), IS_GELU).to(gate.dtype) * up
    tl.store(out + row * width + columns, gated, mask=inside)


def activate_multiply(gate_up: torch.Tensor, is_gelu: bool) -> torch.Tensor:
    """(rows, gates then ups) to (rows, activated gates times ups)."""
    rows, width = len(gate_up), gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    _activate_multiply[(rows, triton.cdiv(width, _BLOCK))](
        out, gate_up, width, IS_GELU=is_gelu, BLOCK=_BLOCK, num_warps=4, **overlap_options(gate_up)
    )
    return out
