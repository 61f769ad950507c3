"""Attention of one query row for each sequence over its paged keys and values."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from python_backend.engine.cuda.kernels.attention_tiles import (
    LOWEST,
    padded_dim,
    score_factors,
    soft_capped,
    soften,
    tile_blocks,
    tile_offsets,
)
from python_backend.engine.cuda.kernels.overlap import overlap_options, wait_for_predecessor

MAX_SPLITS = 32
# So many programs keep the memory of 132 multiprocessors busy; more of them only cost a second pass.
_WANTED_PROGRAMS = 256
# A partial result: the weighted values, their peak and total, and two numbers that keep the next one aligned.
_STATISTICS = 4


class DecodeTiling(NamedTuple):
    tile_tokens: int
    num_warps: int
    num_stages: int


def decode_tiling(head_dim: int, dtype: torch.dtype) -> DecodeTiling:
    if dtype == torch.float32:
        return DecodeTiling(32 if head_dim <= 128 else 16, 4, 2)
    return DecodeTiling(64, 4, 3) if head_dim <= 128 else DecodeTiling(32, 4, 3)


def decode_splits(rows: int, kv_heads: int) -> int:
    """Into how many parts each row's tokens are cut, so that few rows keep the whole device busy."""
    return max(1, min(MAX_SPLITS, _WANTED_PROGRAMS // (rows * kv_heads)))


def partials_size(rows: int, heads: int, head_dim: int, splits: int) -> int:
    """Numbers of fp32 that `decode_attention` keeps between its two passes."""
    return rows * heads * splits * (head_dim + _STATISTICS) if splits > 1 else 0


def decode_attention(
    out: torch.Tensor,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    block_tables: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    splits: int,
    partials: torch.Tensor,
    tiling: DecodeTiling | None = None,
) -> None:
    """Writes out (rows, heads * head_dim) for queries (rows, heads, head_dim); positions[r] is row r's."""
    rows, heads, head_dim = queries.shape
    _, kv_heads, tokens_per_block, _ = keys.shape
    tile_tokens, num_warps, num_stages = tiling or decode_tiling(head_dim, queries.dtype)
    inner, outer = score_factors(scale, softcap)
    span = window or 0
    _decode[(kv_heads, rows, splits)](
        out,
        partials,
        queries,
        keys,
        values,
        block_tables,
        slots,
        positions,
        queries.stride(0),
        block_tables.stride(0),
        inner,
        outer,
        span,
        kv_heads,
        heads // kv_heads,
        max(16, triton.next_power_of_2(heads // kv_heads)),
        head_dim,
        padded_dim(head_dim),
        tokens_per_block,
        tile_tokens,
        splits > 1,
        window is not None,
        softcap is not None,
        num_warps=num_warps,
        num_stages=num_stages,
        **overlap_options(queries),
    )
    if splits > 1:
        _reduce[(heads, rows)](
            out,
            partials,
            positions,
            span,
            splits,
            head_dim,
            padded_dim(head_dim),
            tile_tokens,
            MAX_SPLITS,
            window is not None,
            num_warps=4,
            **overlap_options(queries),
        )


@triton.jit
def _tile_range(position, window, TILE: tl.constexpr, WINDOWED: tl.constexpr):
    """The tiles a row attends to, and the first token of them it may see."""
    first_token = 0
    if WINDOWED:
        first_token = tl.maximum(position - window + 1, 0)
    return first_token // TILE, position // TILE + 1, first_token


@triton.jit(
    do_not_specialize=["window", "table_stride"],
    do_not_specialize_on_alignment=["block_tables", "slots", "positions"],
)
def _decode(
    out,
    partials,
    queries,
    keys,
    values,
    block_tables,
    slots,
    positions,
    query_stride,
    table_stride,
    inner,
    outer,
    window,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED_GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    TOKENS_PER_BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_predecessor(OVERLAPS)
    # Heads are neighbours in a block, so programs that run together read one stretch of memory.
    kv_head = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    position = tl.load(positions + row)
    slot = tl.load(slots + row).to(tl.int64)
    begin, end, first_token = _tile_range(position, window, TILE, WINDOWED)
    if SPLIT:
        share = tl.cdiv(end - begin, tl.num_programs(2))
        begin += tl.program_id(2) * share
        end = tl.minimum(end, begin + share)
        if begin >= end:
            return

    group = tl.arange(0, PADDED_GROUP)
    dims = tl.arange(0, PADDED_DIM)
    heads = kv_head * GROUP + group
    is_dim = dims < HEAD_DIM
    is_output = (group < GROUP)[:, None] & is_dim[None, :]
    query = tl.load(
        queries + row * query_stride + heads[:, None] * HEAD_DIM + dims[None, :], mask=is_output, other=0.0
    )
    table = block_tables + slot * table_stride
    peaks = tl.full([PADDED_GROUP], LOWEST, tl.float32)
    totals = tl.zeros([PADDED_GROUP], tl.float32)
    mixed = tl.zeros([PADDED_GROUP, PADDED_DIM], tl.float32)

    blocks = tile_blocks(table, begin * TILE, position + 1, TOKENS_PER_BLOCK, TILE)
    for tile in tl.range(begin, end):
        offsets = tile_offsets(
            blocks, tile * TILE, kv_head, KV_HEADS, HEAD_DIM, PADDED_DIM, TOKENS_PER_BLOCK, TILE
        )
        blocks = tile_blocks(table, (tile + 1) * TILE, position + 1, TOKENS_PER_BLOCK, TILE)
        tokens = tile * TILE + tl.arange(0, TILE)
        is_seen = tokens <= position
        if WINDOWED:
            is_seen &= tokens >= first_token
        # Memory after the sequence's end may hold anything, even NaN: it is not read.
        is_wanted = is_seen[:, None]
        if HEAD_DIM != PADDED_DIM:
            is_wanted = is_wanted & is_dim[None, :]
        key = tl.load(keys + offsets, mask=is_wanted, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee")
        if CAPPED:
            scores = soft_capped(scores, inner)
        scores = tl.where(is_seen[None, :], scores, float("-inf"))
        weights, shrink, peaks, totals = soften(scores, outer, peaks, totals)
        value = tl.load(values + offsets, mask=is_wanted, other=0.0)
        mixed = tl.dot(weights.to(value.dtype), value, mixed * shrink[:, None], input_precision="ieee")

    if SPLIT:
        part = (row * (KV_HEADS * GROUP) + heads) * tl.num_programs(2) + tl.program_id(2)
        record = partials + part * (HEAD_DIM + 4)
        tl.store(record[:, None] + dims[None, :], mixed, mask=is_output)
        tl.store(record + HEAD_DIM, peaks, mask=group < GROUP)
        tl.store(record + (HEAD_DIM + 1), totals, mask=group < GROUP)
    else:
        result = mixed / totals[:, None]
        place = out + row * (KV_HEADS * GROUP * HEAD_DIM) + heads[:, None] * HEAD_DIM + dims[None, :]
        tl.store(place, result.to(out.dtype.element_ty), mask=is_output)


@triton.jit(do_not_specialize=["window", "splits"], do_not_specialize_on_alignment=["positions"])
def _reduce(
    out,
    partials,
    positions,
    window,
    splits,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    TILE: tl.constexpr,
    MOST: tl.constexpr,
    WINDOWED: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_predecessor(OVERLAPS)
    row = tl.program_id(1).to(tl.int64)
    begin, end, _ = _tile_range(tl.load(positions + row), window, TILE, WINDOWED)
    # Parts without a tile wrote nothing; they are the last ones.
    used = tl.cdiv(end - begin, tl.cdiv(end - begin, splits))
    place = row * tl.num_programs(0) + tl.program_id(0)
    parts = tl.arange(0, MOST)
    dims = tl.arange(0, PADDED_DIM)
    is_dim = dims < HEAD_DIM
    record = partials + (place * splits + parts) * (HEAD_DIM + 4)
    peaks = tl.load(record + HEAD_DIM, mask=parts < used, other=LOWEST)
    totals = tl.load(record + (HEAD_DIM + 1), mask=parts < used, other=0.0)
    mixed = tl.load(
        record[:, None] + dims[None, :], mask=(parts < used)[:, None] & is_dim[None, :], other=0.0
    )
    shares = tl.exp2(peaks - tl.max(peaks, 0))
    result = tl.sum(mixed * shares[:, None], 0) / tl.sum(totals * shares, 0)
    tl.store(out + place * HEAD_DIM + dims, result.to(out.dtype.element_ty), mask=is_dim)
