"""Turning queries and keys to their positions, and putting keys and values into the cache, in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from python_backend.engine.cuda.kernels.overlap import overlap_options, wait_for_predecessor
from python_backend.engine.cuda.kernels.quantization import FP8_MAX

_HEADS_PER_PROGRAM = 8


@triton.jit(do_not_specialize=["table_stride"])
def _turn_and_store(
    qkv,
    keys,
    values,
    cosines,
    sines,
    head_norms,
    slots,
    positions,
    block_tables,
    table_stride,
    epsilon,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    HAS_NORM: tl.constexpr,
    TILE_HEADS: tl.constexpr,
    TILE_DIM: tl.constexpr,
    LARGEST_FP8: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_predecessor(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * TILE_HEADS + tl.arange(0, TILE_HEADS)
    dims = tl.arange(0, TILE_DIM)
    inside = (heads < HEADS + 2 * KV_HEADS)[:, None] & (dims < HEAD_DIM)[None, :]
    place = (heads * HEAD_DIM)[:, None] + dims[None, :]
    row_start = row * (HEADS + 2 * KV_HEADS) * HEAD_DIM
    loaded = tl.load(qkv + row_start + place, mask=inside, other=0.0)
    x = loaded.to(tl.float32)
    turns = heads < HEADS + KV_HEADS
    if HAS_NORM:
        scale = tl.rsqrt(tl.sum(x * x, axis=1) / HEAD_DIM + epsilon)
        is_turning = inside & turns[:, None]
        normed = x * scale[:, None]
        if head_norms.dtype.element_ty != tl.float32:
            normed = normed.to(loaded.dtype)
        weighed = (normed * tl.load(head_norms + place, mask=is_turning, other=0.0)).to(loaded.dtype)
        x = tl.where(turns[:, None], weighed.to(tl.float32), x)
    position = tl.load(positions + row)
    pairs = tl.arange(0, TILE_DIM // 2)
    turning = turns[:, None] & (pairs < PAIRS)[None, :]
    angle = position.to(tl.int64) * PAIRS + pairs
    cosine = tl.load(cosines + angle, mask=pairs < PAIRS, other=1.0)
    sine = tl.load(sines + angle, mask=pairs < PAIRS, other=0.0)
    cosine = tl.where(turning, cosine[None, :], 1.0)
    sine = tl.where(turning, sine[None, :], 0.0)
    even, odd = tl.split(tl.reshape(x, (TILE_HEADS, TILE_DIM // 2, 2)))
    turned = tl.join(even * cosine - odd * sine, odd * cosine + even * sine)
    turned = tl.reshape(turned, (TILE_HEADS, TILE_DIM)).to(loaded.dtype)
    tl.store(qkv + row_start + place, turned, mask=inside & (heads < HEADS)[:, None])

    slot = tl.load(slots + row).to(tl.int64)
    block = tl.load(block_tables + slot * table_stride + position // BLOCK_TOKENS).to(tl.int64)
    kv_head = tl.where(turns, heads - HEADS, heads - HEADS - KV_HEADS)
    cached = (block * KV_HEADS + kv_head) * BLOCK_TOKENS + position % BLOCK_TOKENS
    target = cached[:, None] * HEAD_DIM + dims[None, :]
    kept = turned
    if keys.dtype.element_ty == tl.float8e4nv:
        kept = tl.clamp(turned.to(tl.float32), -LARGEST_FP8, LARGEST_FP8).to(tl.float8e4nv)
    tl.store(keys + target, kept, mask=inside & (turns & (heads >= HEADS))[:, None])
    tl.store(values + target, kept, mask=inside & (heads >= HEADS + KV_HEADS)[:, None])


def turn_and_store(
    qkv: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    cosines: torch.Tensor,
    sines: torch.Tensor,
    head_norms: torch.Tensor | None,
    epsilon: float,
    slots: torch.Tensor,
    positions: torch.Tensor,
    block_tables: torch.Tensor,
) -> None:
    """`qkv` (rows, queries keys values): queries are turned where they are, keys and values go to the cache.

    There they have its type; what fp8 has no number for becomes the largest that it has.

    `cosines` and `sines` are (positions, pairs); `head_norms` is the weight of the norm that query and key
    heads get before they turn, one head after the other.
    """
    _, kv_heads, block_tokens, head_dim = keys.shape
    all_heads = qkv.shape[1] // head_dim
    tile_dim = triton.next_power_of_2(head_dim)
    _turn_and_store[(len(qkv), triton.cdiv(all_heads, _HEADS_PER_PROGRAM))](
        qkv,
        keys,
        values,
        cosines,
        sines,
        qkv if head_norms is None else head_norms,
        slots,
        positions,
        block_tables,
        block_tables.stride(0),
        epsilon,
        HEADS=all_heads - 2 * kv_heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        PAIRS=cosines.shape[1],
        BLOCK_TOKENS=block_tokens,
        HAS_NORM=head_norms is not None,
        TILE_HEADS=_HEADS_PER_PROGRAM,
        TILE_DIM=tile_dim,
        LARGEST_FP8=FP8_MAX,
        num_warps=4,
        **overlap_options(qkv),
    )
