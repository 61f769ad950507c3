"""Causal attention of chunks of query rows over the paged keys and values of their sequences.

A few rows on a long context are cut along their keys, so that they keep the whole device busy; whichever part
is done last puts them together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from python_backend.engine.cuda.kernels.attention_tiles import (
    LOWEST,
    padded_dim,
    product_type,
    score_factors,
    soft_capped,
    soften,
    tile_blocks,
    tile_offsets,
)
from python_backend.engine.cuda.kernels.hardware import is_hopper_or_newer

if TYPE_CHECKING:
    from numpy.typing import NDArray


# So many programs keep the device busy; a part has at least so many keys, and a tile at most so many parts.
_WANTED_PROGRAMS = 264
_LEAST_PART_TOKENS = 1024
_MOST_PARTS = 32
# Rows that the device copies by itself begin at multiples of so many bytes.
_COPIED_BYTES = 16
# Peak and total of a row, and two numbers that keep the next one aligned.
_STATISTICS = 4


class PrefillTiling(NamedTuple):
    """Query rows (tokens times the heads of a group) and cached tokens that a program takes at a time."""

    query_rows: int
    tile_tokens: int
    num_warps: int
    num_stages: int
    # The device copies whole tiles by itself, where a tile lies within one block.
    copies_tiles: bool = True


def prefill_tiling(
    head_dim: int, group: int, dtype: torch.dtype, tokens_per_block: int = 64
) -> PrefillTiling:
    """The block's size changes how a tile is loaded, never its query rows: at least those of one token."""
    if dtype == torch.float32:
        return PrefillTiling(max(16, triton.next_power_of_2(group)), 16, 8, 1)
    if head_dim > 128:
        return PrefillTiling(128, 64, 8, 2)
    # Four warps let two programs share a multiprocessor, but leave no registers for a pointer to every row.
    return PrefillTiling(128, 64, 4, 2) if tokens_per_block >= 64 else PrefillTiling(128, 64, 8, 3)


def most_cut_tiles(kv_heads: int) -> int:
    """How many tiles a list has at most in which some are cut, their parts counted."""
    return 2 * -(-_WANTED_PROGRAMS // kv_heads)


class PrefillWorkspace:
    """What the parts of tiles leave for the last of them."""

    def __init__(
        self, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        programs = most_cut_tiles(kv_heads) * kv_heads
        rows = programs * prefill_tiling(head_dim, heads // kv_heads, dtype).query_rows
        self.partials = torch.empty(rows * (head_dim + _STATISTICS), dtype=torch.float32, device=device)
        self.done = torch.zeros(programs, dtype=torch.int32, device=device)


def prefill_tiles(
    chunk_starts: NDArray[np.int32],
    chunk_tokens: NDArray[np.int32],
    group: int,
    tiling: PrefillTiling,
    kv_heads: int,
) -> NDArray[np.int32]:
    """(chunk, first query token, part, parts) of every tile of query rows.

    A tile that sees more tokens takes longer, so it comes first and the last ones are short. The tiles of a
    chunk stay together: they read the same keys and values.
    """
    whole = _whole_tiles(chunk_starts, chunk_tokens, group, tiling)
    parts = np.ones(len(whole), np.int32)
    if 0 < len(whole) * kv_heads <= _WANTED_PROGRAMS // 2:
        keys = chunk_starts[whole[:, 0]] + chunk_tokens[whole[:, 0]]
        most = min(_MOST_PARTS, _WANTED_PROGRAMS // (len(whole) * kv_heads))
        parts = np.clip(keys // _LEAST_PART_TOKENS, 1, most).astype(np.int32)
    part = np.arange(parts.sum(), dtype=np.int32) - np.repeat(np.cumsum(parts) - parts, parts)
    return np.column_stack([np.repeat(whole, parts, axis=0), part, np.repeat(parts, parts)]).astype(np.int32)


def _whole_tiles(
    chunk_starts: NDArray[np.int32], chunk_tokens: NDArray[np.int32], group: int, tiling: PrefillTiling
) -> NDArray[np.int32]:
    step = tiling.query_rows // group
    ends = chunk_starts + chunk_tokens
    tiles = []
    for chunk in np.argsort(-ends, kind="stable"):
        first = np.arange(0, chunk_tokens[chunk], step, dtype=np.int32)[::-1]
        tiles.append(np.stack([np.full_like(first, chunk), first], axis=1))
    return np.concatenate(tiles) if tiles else np.zeros((0, 2), np.int32)


def prefill_attention(
    out: torch.Tensor,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    block_tables: torch.Tensor,
    chunk_slots: torch.Tensor,
    chunk_first_rows: torch.Tensor,
    chunk_starts: torch.Tensor,
    tiles: torch.Tensor,
    workspace: PrefillWorkspace,
    scale: float,
    window: int | None,
    softcap: float | None,
    tiling: PrefillTiling | None = None,
    sinks: torch.Tensor | None = None,
) -> None:
    """Writes out (rows, heads * head_dim) for queries (rows, heads, head_dim).

    Chunk c is rows chunk_first_rows[c] to chunk_first_rows[c + 1] (there is one more than chunks), which are
    the tokens from chunk_starts[c] on of the sequence in chunk_slots[c], its last ones. `tiles` is
    made by `prefill_tiles` with the same tiling.
    """
    _, heads, head_dim = queries.shape
    blocks, kv_heads, tokens_per_block, _ = keys.shape
    tiling = tiling or prefill_tiling(head_dim, heads // kv_heads, queries.dtype, tokens_per_block)
    padded = padded_dim(head_dim)
    fits = tokens_per_block % tiling.tile_tokens == 0 and head_dim * keys.itemsize % _COPIED_BYTES == 0
    copies = tiling.copies_tiles and fits and _copies_by_itself(keys)
    cached: tuple[Any, Any] = (keys, values)
    if copies:
        shape, strides = [blocks * kv_heads * tokens_per_block, head_dim], [head_dim, 1]
        box = [tiling.tile_tokens, padded]
        cached = TensorDescriptor(keys, shape, strides, box), TensorDescriptor(values, shape, strides, box)
    inner, outer = score_factors(scale, softcap)
    _prefill[(tiles.shape[0], kv_heads)](
        out,
        workspace.partials,
        workspace.done,
        queries,
        *cached,
        block_tables,
        chunk_slots,
        chunk_first_rows,
        chunk_starts,
        tiles,
        queries if sinks is None else sinks,
        queries.stride(0),
        block_tables.stride(0),
        inner,
        outer,
        window or 0,
        kv_heads,
        heads // kv_heads,
        head_dim,
        padded,
        product_type(queries, keys),
        tokens_per_block,
        tiling.query_rows,
        tiling.tile_tokens,
        copies,
        window is not None,
        softcap is not None,
        sinks is not None,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )


def _copies_by_itself(keys: torch.Tensor) -> bool:
    """Whether the device does; the interpreter can."""
    return not keys.is_cuda or is_hopper_or_newer(keys.device)


@triton.jit
def _attend(
    query,
    peaks,
    totals,
    mixed,
    begin,
    end,
    keys,
    values,
    table,
    kv_head,
    row_positions,
    end_token,
    masked_tile,
    inner,
    outer,
    window,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PRODUCT: tl.constexpr,
    TOKENS_PER_BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    COPIES: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    IS_TAIL: tl.constexpr,
):
    """Adds the tiles from begin up to end; from masked_tile on some rows see only a part."""
    blocks = tile_blocks(table, begin * TILE, end_token, TOKENS_PER_BLOCK, TILE)
    for tile in tl.range(begin, end):
        first_token = tile * TILE
        tokens = first_token + tl.arange(0, TILE)
        if COPIES:
            place = (blocks * KV_HEADS + kv_head) * TOKENS_PER_BLOCK + first_token % TOKENS_PER_BLOCK
            key = keys.load([place, 0])
        else:
            offsets = tile_offsets(
                blocks, first_token, kv_head, KV_HEADS, HEAD_DIM, PADDED_DIM, TOKENS_PER_BLOCK, TILE
            )
            is_dim = tl.arange(0, PADDED_DIM)[None, :] < HEAD_DIM
            if HEAD_DIM != PADDED_DIM:
                key = tl.load(keys + offsets, mask=is_dim, other=0.0)
            else:
                key = tl.load(keys + offsets)
        blocks = tile_blocks(table, first_token + TILE, end_token, TOKENS_PER_BLOCK, TILE)
        scores = tl.dot(query, tl.trans(key.to(PRODUCT)), input_precision="ieee")
        if CAPPED:
            scores = soft_capped(scores, inner)
        if tile >= masked_tile:
            is_seen = tokens[None, :] <= row_positions[:, None]
            if WINDOWED:
                is_seen &= tokens[None, :] > row_positions[:, None] - window
            scores = tl.where(is_seen, scores, float("-inf"))
        weights, shrink, peaks, totals = soften(scores, outer, peaks, totals)
        if COPIES:
            value = values.load([place, 0])
        elif HEAD_DIM != PADDED_DIM:
            value = tl.load(values + offsets, mask=is_dim, other=0.0)
        else:
            value = tl.load(values + offsets)
        value = value.to(PRODUCT)
        if IS_TAIL:
            # Memory after the sequence's end may hold anything, and 0 * NaN is NaN.
            value = tl.where(tokens[:, None] < end_token, value, 0.0)
        mixed = tl.dot(weights.to(PRODUCT), value, mixed * shrink[:, None], input_precision="ieee")
    return peaks, totals, mixed


@triton.jit(
    do_not_specialize=["window", "table_stride"],
    do_not_specialize_on_alignment=[
        "block_tables",
        "chunk_slots",
        "chunk_first_rows",
        "chunk_starts",
        "tiles",
    ],
)
def _prefill(
    out,
    partials,
    done,
    queries,
    keys,
    values,
    block_tables,
    chunk_slots,
    chunk_first_rows,
    chunk_starts,
    tiles,
    sinks,
    query_stride,
    table_stride,
    inner,
    outer,
    window,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PRODUCT: tl.constexpr,
    TOKENS_PER_BLOCK: tl.constexpr,
    QUERY_ROWS: tl.constexpr,
    TILE: tl.constexpr,
    COPIES: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    item = tl.program_id(0)
    chunk = tl.load(tiles + item * 4)
    if chunk < 0:  # the list is only filled up
        return
    first_query = tl.load(tiles + item * 4 + 1)
    part = tl.load(tiles + item * 4 + 2)
    parts = tl.load(tiles + item * 4 + 3)
    kv_head = tl.program_id(1)
    first_row = tl.load(chunk_first_rows + chunk)
    queries_left = tl.load(chunk_first_rows + chunk + 1) - first_row - first_query
    first_position = tl.load(chunk_starts + chunk) + first_query
    table = block_tables + tl.load(chunk_slots + chunk).to(tl.int64) * table_stride

    # Rows are query tokens times the heads of a group; a group that is no power of two leaves some over.
    in_tile = tl.arange(0, QUERY_ROWS)
    dims = tl.arange(0, PADDED_DIM)
    query_tokens = in_tile // GROUP
    heads = kv_head * GROUP + in_tile % GROUP
    taken = tl.minimum(queries_left, QUERY_ROWS // GROUP)
    is_output = (query_tokens < taken)[:, None] & (dims < HEAD_DIM)[None, :]
    rows = (first_row + first_query + query_tokens).to(tl.int64)
    query = tl.load(
        queries + (rows * query_stride + heads * HEAD_DIM)[:, None] + dims[None, :], mask=is_output, other=0.0
    ).to(PRODUCT)
    row_positions = first_position + query_tokens
    chunk_end = first_position + queries_left

    first_tile = 0
    masked_tile = (first_position + 1) // TILE
    if WINDOWED:
        first_tile = tl.maximum(first_position - window + 1, 0) // TILE
        masked_tile = first_tile
    all_tiles = tl.cdiv(first_position + taken, TILE)
    whole_tiles = tl.minimum(chunk_end // TILE, all_tiles)
    share = tl.cdiv(all_tiles - first_tile, parts)
    begin = first_tile + part * share
    end = tl.minimum(all_tiles, begin + share)
    peaks = tl.full([QUERY_ROWS], LOWEST, tl.float32)
    totals = tl.zeros([QUERY_ROWS], tl.float32)
    mixed = tl.zeros([QUERY_ROWS, PADDED_DIM], tl.float32)
    # At most one tile reaches beyond the chunk: it has a loop of its own, so that the others need no care.
    for is_tail in tl.static_range(2):
        peaks, totals, mixed = _attend(
            query,
            peaks,
            totals,
            mixed,
            tl.maximum(begin, whole_tiles) if is_tail else begin,
            end if is_tail else tl.minimum(end, whole_tiles),
            keys,
            values,
            table,
            kv_head,
            row_positions,
            chunk_end,
            masked_tile,
            inner,
            outer,
            window,
            KV_HEADS,
            HEAD_DIM,
            PADDED_DIM,
            PRODUCT,
            TOKENS_PER_BLOCK,
            TILE,
            COPIES,
            WINDOWED,
            CAPPED,
            is_tail,
        )
    if parts > 1:
        width: tl.constexpr = HEAD_DIM + 4
        stride: tl.constexpr = KV_HEADS * QUERY_ROWS * width
        record = partials + ((item * KV_HEADS + kv_head) * QUERY_ROWS + in_tile) * width
        is_dim = (dims < HEAD_DIM)[None, :]
        tl.store(record[:, None] + dims[None, :], mixed, mask=is_dim)
        tl.store(record + HEAD_DIM, peaks)
        tl.store(record + (HEAD_DIM + 1), totals)
        # All of a program has written before it counts as done, and the last reads what all wrote.
        tl.debug_barrier()
        counter = done + (item - part) * KV_HEADS + kv_head
        if tl.atomic_add(counter, 1, sem="acq_rel") != parts - 1:
            return
        tl.store(counter, 0)
        record -= part * stride
        peaks = tl.full([QUERY_ROWS], LOWEST, tl.float32)
        totals = tl.zeros([QUERY_ROWS], tl.float32)
        mixed = tl.zeros([QUERY_ROWS, PADDED_DIM], tl.float32)
        for _ in tl.range(0, parts):
            peak = tl.load(record + HEAD_DIM, cache_modifier=".cg")
            total = tl.load(record + (HEAD_DIM + 1), cache_modifier=".cg")
            found = tl.load(record[:, None] + dims[None, :], mask=is_dim, other=0.0, cache_modifier=".cg")
            new_peaks = tl.maximum(peaks, peak)
            shrink, grow = tl.exp2(peaks - new_peaks), tl.exp2(peak - new_peaks)
            mixed = mixed * shrink[:, None] + found * grow[:, None]
            totals = totals * shrink + total * grow
            peaks = new_peaks
            record += stride
    if HAS_SINKS:
        totals += tl.exp2(tl.load(sinks + heads) - peaks)
    result = mixed / totals[:, None]
    place = out + (rows * (KV_HEADS * GROUP * HEAD_DIM) + heads * HEAD_DIM)[:, None] + dims[None, :]
    tl.store(place, result.to(out.dtype.element_ty), mask=is_output)
