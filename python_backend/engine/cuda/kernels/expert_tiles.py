"""A tile of pairs on its way through an expert: which they are, and where its results go."""

from __future__ import annotations

import triton
import triton.language as tl

from python_backend.engine.cuda.kernels.activation import activated, clamped_swiglu


@triton.jit
def pairs_of(tiles, tile_room, tile, BLOCK_M: tl.constexpr):
    """The places of a tile's pairs in the order by expert, and which of them there are."""
    places = tl.load(tiles + tile_room + tile) + tl.arange(0, BLOCK_M)
    return places, places < tl.load(tiles + 2 * tile_room + tile)


@triton.jit
def store_gated(
    out,
    gate,
    up,
    bias,
    expert,
    places,
    outputs,
    inside,
    INTERMEDIATE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_GELU: tl.constexpr,
    LIMIT: tl.constexpr,
):
    """Gates and ups (pairs, outputs) with their biases through the activation; a LIMIT of 0 is none."""
    if HAS_BIAS:
        own = bias + expert.to(tl.int64) * 2 * INTERMEDIATE + outputs
        gate += tl.load(own, mask=outputs < INTERMEDIATE, other=0.0).to(tl.float32)[None, :]
        up += tl.load(own + INTERMEDIATE, mask=outputs < INTERMEDIATE, other=0.0).to(tl.float32)[None, :]
    # Rounded where a product and an activation of their own would round.
    dtype = out.dtype.element_ty
    gate, up = gate.to(dtype).to(tl.float32), up.to(dtype).to(tl.float32)
    if LIMIT > 0:
        gated = clamped_swiglu(gate, up, LIMIT)
    else:
        gated = activated(gate, IS_GELU).to(dtype).to(tl.float32) * up
    target = out + places.to(tl.int64)[:, None] * INTERMEDIATE + outputs[None, :]
    tl.store(target, gated.to(dtype), mask=inside)


@triton.jit
def store_weighed(
    out,
    total,
    bias,
    shares,
    expert,
    pairs,
    has_pair,
    outputs,
    HIDDEN: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """What an expert gives to its pairs (pairs, outputs), times their shares."""
    if HAS_BIAS:
        own = bias + expert.to(tl.int64) * HIDDEN + outputs
        total += tl.load(own, mask=outputs < HIDDEN, other=0.0).to(tl.float32)[None, :]
    total *= tl.load(shares + pairs, mask=has_pair, other=0.0)[:, None]
    target = out + pairs.to(tl.int64)[:, None] * HIDDEN + outputs[None, :]
    inside = has_pair[:, None] & (outputs < HIDDEN)[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=inside)
