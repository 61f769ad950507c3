"""Attention of one query row for each sequence over its paged keys and values.

The host makes a list of work: few rows are cut into parts of about one length, so that they keep the whole
device busy; of many only the long ones are cut, and the longest parts go first, so that none is left to run
when all others are done. Where few rows are cut into many parts a second kernel puts them together, by all of
the device; else whichever part of a row is done last does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

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
from python_backend.engine.cuda.kernels.overlap import overlap_options, wait_for_predecessor

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_PARTS = 32
# So many programs keep the memory of 132 multiprocessors busy; more of them only cost putting together.
_WANTED_PROGRAMS = 192
# Nobody gains by parts of less than a tile, and among many rows by parts of less than several: putting them
# together takes as long as reading some.
_LEAST_PART_TOKENS = 64
_LEAST_PART_OF_MANY_TOKENS = 768
# A partial result: the weighted values, their peak and total, and two numbers that keep the next one aligned.
_STATISTICS = 4
_NOBODY = -1


class DecodeTiling(NamedTuple):
    tile_tokens: int
    num_warps: int
    num_stages: int


def decode_tiling(head_dim: int, dtype: torch.dtype) -> DecodeTiling:
    if dtype == torch.float32:
        return DecodeTiling(32 if head_dim <= 128 else 16, 4, 2)
    return DecodeTiling(64, 4, 3) if head_dim <= 128 else DecodeTiling(32, 4, 3)


def wanted_parts(kv_heads: int) -> int:
    """Of all rows together."""
    return -(-_WANTED_PROGRAMS // kv_heads)


def _spare_parts(rows: int, kv_heads: int) -> int:
    """How many more parts there are at most than rows."""
    wanted = wanted_parts(kv_heads)
    return wanted if rows <= wanted else 2 * wanted


def most_work(rows: int, kv_heads: int) -> int:
    """How long the list of work for so many rows gets."""
    return rows + _spare_parts(rows, kv_heads)


def decode_work(positions: NDArray[np.int32], kv_heads: int, size: int) -> NDArray[np.int32]:
    """(row, part, parts) of every part of the rows at these positions, filled up to `size` with nobody's."""
    work = np.full((size, 3), _NOBODY, np.int32)
    if not len(positions):
        return work
    lengths = positions.astype(np.int64) + 1
    parts = _parts(lengths, kv_heads)
    order = np.argsort(-lengths / parts, kind="stable")
    parts = parts[order]
    ends = np.cumsum(parts)
    total = int(ends[-1])
    work[:total, 0] = np.repeat(order, parts)
    work[:total, 1] = np.arange(total) - np.repeat(ends - parts, parts)
    work[:total, 2] = np.repeat(parts, parts)
    return work


def _parts(lengths: NDArray[np.int64], kv_heads: int) -> NDArray[np.int64]:
    spare, total = _spare_parts(len(lengths), kv_heads), int(lengths.sum())
    if len(lengths) <= wanted_parts(kv_heads):
        parts = lengths * spare // total
    else:
        parts = -(-lengths // max(_LEAST_PART_OF_MANY_TOKENS, -(-total // spare)))
    return np.clip(parts, 1, np.minimum(MAX_PARTS, -(-lengths // _LEAST_PART_TOKENS)))


def is_cut_always(rows: int, kv_heads: int) -> bool:
    """Whether rows are so few that all but the shortest are cut."""
    return 2 * rows <= wanted_parts(kv_heads)


class Workspace:
    """What parts leave for the last of their row, for lists of work up to this length."""

    def __init__(self, size: int, heads: int, kv_heads: int, head_dim: int, device: torch.device) -> None:
        self.partials = torch.empty(
            size * heads * (head_dim + _STATISTICS), dtype=torch.float32, device=device
        )
        self.done = torch.zeros(size * kv_heads, dtype=torch.int32, device=device)


def decode_attention(
    out: torch.Tensor,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    block_tables: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    work: torch.Tensor,
    workspace: Workspace,
    scale: float,
    window: int | None,
    softcap: float | None,
    tiling: DecodeTiling | None = None,
    in_two_passes: bool | None = None,
    sinks: torch.Tensor | None = None,
) -> None:
    """Writes those rows of out (rows, heads * head_dim) that `work` names, which `decode_work` made.

    queries are (rows, heads, head_dim); row r is the token at positions[r] of the sequence in slots[r].
    `sinks` (heads) are scores to the base two that no token has.
    """
    rows, heads, head_dim = queries.shape
    _, kv_heads, tokens_per_block, _ = keys.shape
    tile_tokens, num_warps, num_stages = tiling or decode_tiling(head_dim, queries.dtype)
    inner, outer = score_factors(scale, softcap)
    in_two_passes = is_cut_always(rows, kv_heads) if in_two_passes is None else in_two_passes
    _decode[(kv_heads, len(work))](
        out,
        workspace.partials,
        workspace.done,
        queries,
        keys,
        values,
        block_tables,
        slots,
        positions,
        work,
        queries if sinks is None else sinks,
        queries.stride(0),
        block_tables.stride(0),
        inner,
        outer,
        window or 0,
        kv_heads,
        heads // kv_heads,
        max(16, triton.next_power_of_2(heads // kv_heads)),
        head_dim,
        padded_dim(head_dim),
        product_type(queries, keys),
        tokens_per_block,
        tile_tokens,
        MAX_PARTS,
        in_two_passes,
        window is not None,
        softcap is not None,
        sinks is not None,
        num_warps=num_warps,
        num_stages=num_stages,
        **overlap_options(queries),
    )
    if in_two_passes:
        _reduce[(heads, len(work))](
            out,
            workspace.partials,
            work,
            queries if sinks is None else sinks,
            head_dim,
            padded_dim(head_dim),
            MAX_PARTS,
            sinks is not None,
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


@triton.jit
def _put_together(
    out,
    partials,
    sinks,
    row,
    head,
    first,
    parts,
    heads,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    MOST: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """What the parts of a row have found for one head, from the list's `first` item on."""
    each = tl.arange(0, MOST)
    dims = tl.arange(0, PADDED_DIM)
    is_dim = dims < HEAD_DIM
    is_part = each < parts
    record = partials + ((first + each) * heads + head) * (HEAD_DIM + 4)
    peaks = tl.load(record + HEAD_DIM, mask=is_part, other=LOWEST, cache_modifier=".cg")
    totals = tl.load(record + (HEAD_DIM + 1), mask=is_part, other=0.0, cache_modifier=".cg")
    mixed = tl.load(
        record[:, None] + dims[None, :],
        mask=is_part[:, None] & is_dim[None, :],
        other=0.0,
        cache_modifier=".cg",
    )
    peak = tl.max(peaks, 0)
    shares = tl.exp2(peaks - peak)
    total = tl.sum(totals * shares, 0)
    if HAS_SINKS:
        total += tl.exp2(tl.load(sinks + head) - peak)
    result = tl.sum(mixed * shares[:, None], 0) / total
    tl.store(out + (row * heads + head) * HEAD_DIM + dims, result.to(out.dtype.element_ty), mask=is_dim)


@triton.jit(
    do_not_specialize=["window", "table_stride"],
    do_not_specialize_on_alignment=["block_tables", "slots", "positions", "work"],
)
def _decode(
    out,
    partials,
    done,
    queries,
    keys,
    values,
    block_tables,
    slots,
    positions,
    work,
    sinks,
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
    PRODUCT: tl.constexpr,
    TOKENS_PER_BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    MOST: tl.constexpr,
    IN_TWO_PASSES: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    # Heads are neighbours in a block, so programs that run together read one stretch of memory.
    kv_head = tl.program_id(0)
    item = tl.program_id(1)
    # What to do was known before the step began, so it is read while the kernel before this one still runs.
    row = tl.load(work + item * 3).to(tl.int64)
    if row < 0:
        if item == 0:
            wait_for_predecessor(OVERLAPS)  # of all who have nothing to do, one: see there
        return
    part = tl.load(work + item * 3 + 1)
    parts = tl.load(work + item * 3 + 2)
    position = tl.load(positions + row)
    slot = tl.load(slots + row).to(tl.int64)
    begin, end, first_token = _tile_range(position, window, TILE, WINDOWED)
    share = tl.cdiv(end - begin, parts)
    begin += part * share
    # A window may leave fewer tiles than there are parts: the last ones then have none, and add nothing.
    end = tl.minimum(end, begin + share)
    table = block_tables + slot * table_stride
    blocks = tile_blocks(table, begin * TILE, position + 1, TOKENS_PER_BLOCK, TILE)
    wait_for_predecessor(OVERLAPS)

    group = tl.arange(0, PADDED_GROUP)
    dims = tl.arange(0, PADDED_DIM)
    heads = kv_head * GROUP + group
    is_dim = dims < HEAD_DIM
    is_output = (group < GROUP)[:, None] & is_dim[None, :]
    query = tl.load(
        queries + row * query_stride + heads[:, None] * HEAD_DIM + dims[None, :], mask=is_output, other=0.0
    ).to(PRODUCT)
    peaks = tl.full([PADDED_GROUP], LOWEST, tl.float32)
    totals = tl.zeros([PADDED_GROUP], tl.float32)
    mixed = tl.zeros([PADDED_GROUP, PADDED_DIM], tl.float32)

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
        key = tl.load(keys + offsets, mask=is_wanted, other=0.0).to(PRODUCT)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee")
        if CAPPED:
            scores = soft_capped(scores, inner)
        scores = tl.where(is_seen[None, :], scores, float("-inf"))
        weights, shrink, peaks, totals = soften(scores, outer, peaks, totals)
        value = tl.load(values + offsets, mask=is_wanted, other=0.0).to(PRODUCT)
        mixed = tl.dot(weights.to(PRODUCT), value, mixed * shrink[:, None], input_precision="ieee")

    if parts == 1:
        if HAS_SINKS:
            totals += tl.exp2(tl.load(sinks + heads, mask=group < GROUP, other=0.0) - peaks)
        result = mixed / totals[:, None]
        place = out + row * (KV_HEADS * GROUP * HEAD_DIM) + heads[:, None] * HEAD_DIM + dims[None, :]
        tl.store(place, result.to(out.dtype.element_ty), mask=is_output)
    else:
        record = partials + (item * (KV_HEADS * GROUP) + heads) * (HEAD_DIM + 4)
        tl.store(record[:, None] + dims[None, :], mixed, mask=is_output)
        tl.store(record + HEAD_DIM, peaks, mask=group < GROUP)
        tl.store(record + (HEAD_DIM + 1), totals, mask=group < GROUP)
        if not IN_TWO_PASSES:
            # All of a program has written before it counts as done, and the last reads what all wrote.
            tl.debug_barrier()
            first = item - part
            counter = done + first * KV_HEADS + kv_head
            if tl.atomic_add(counter, 1, sem="acq_rel") == parts - 1:
                for head in tl.static_range(GROUP):
                    _put_together(
                        out,
                        partials,
                        sinks,
                        row,
                        kv_head * GROUP + head,
                        first,
                        parts,
                        KV_HEADS * GROUP,
                        HEAD_DIM,
                        PADDED_DIM,
                        MOST,
                        HAS_SINKS,
                    )
                tl.store(counter, 0)


@triton.jit(do_not_specialize_on_alignment=["work"])
def _reduce(
    out,
    partials,
    work,
    sinks,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    MOST: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """The second pass: a program for each head of a row, at the row's first part."""
    item = tl.program_id(1)
    row = tl.load(work + item * 3).to(tl.int64)
    part = tl.load(work + item * 3 + 1)
    parts = tl.load(work + item * 3 + 2)
    is_first_of_several = (part == 0) & (parts > 1)
    if is_first_of_several | (item == 0):
        wait_for_predecessor(OVERLAPS)
    if is_first_of_several:
        _put_together(
            out,
            partials,
            sinks,
            row,
            tl.program_id(0),
            item,
            parts,
            tl.num_programs(0),
            HEAD_DIM,
            PADDED_DIM,
            MOST,
            HAS_SINKS,
        )
