"""Root-mean-square normalization of rows, with the residual addition that precedes it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from python_backend.engine.cuda.kernels.overlap import overlap_options, wait_for_predecessor


@triton.jit
def _add_rms_norm(
    out,
    hidden,
    delta,
    weight,
    epsilon,
    width,
    out_stride,
    hidden_stride,
    delta_stride,
    part_stride,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_predecessor(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    x = tl.load(hidden + row * hidden_stride + columns, mask=inside, other=0.0)
    if PARTS > 0:
        added = tl.load(delta + row * delta_stride + columns, mask=inside, other=0.0)
        for part in tl.static_range(1, PARTS):
            place = part * part_stride + row * delta_stride + columns
            added += tl.load(delta + place, mask=inside, other=0.0)
        x += added.to(x.dtype)
        tl.store(hidden + row * hidden_stride + columns, x, mask=inside)
    exact = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(exact * exact, axis=0) / width + epsilon)
    # As the references do it: most round the normed row before it is weighed; fp32 weights say otherwise.
    normed = exact * scale
    if weight.dtype.element_ty != tl.float32:
        normed = normed.to(out.dtype.element_ty)
    normed = (normed * tl.load(weight + columns, mask=inside, other=0.0)).to(out.dtype.element_ty)
    tl.store(out + row * out_stride + columns, normed, mask=inside)


def add_rms_norm(
    hidden: torch.Tensor,
    delta: torch.Tensor | None,
    weight: torch.Tensor | None,
    epsilon: float,
) -> torch.Tensor:
    """hidden += delta, in place; returns the norm of what that gives, times the weight.

    `delta` may come in parts (parts, rows, width), to be added up first. Without a weight nothing is normed.
    """
    if weight is None:
        if delta is not None:
            hidden += delta if delta.dim() == 2 else delta.sum(0).to(hidden.dtype)
        return hidden
    rows, width = hidden.shape
    out = torch.empty_like(hidden)
    given = hidden if delta is None else delta
    block = triton.next_power_of_2(width)
    _add_rms_norm[(rows,)](
        out,
        hidden,
        given,
        weight,
        epsilon,
        width,
        out.stride(0),
        hidden.stride(0),
        given.stride(-2),
        given.stride(0),
        PARTS=0 if delta is None else 1 if delta.dim() == 2 else len(delta),
        BLOCK=block,
        num_warps=min(16, max(1, block // 512)),
        **overlap_options(hidden),
    )
    return out
