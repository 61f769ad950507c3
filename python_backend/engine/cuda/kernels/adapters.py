"""What LoRA adapters add to products, for rows that have different ones.

Rows are brought together by adapter, as pairs are by expert (`experts.arrange`): a program has a tile of rows
of one adapter. Where its matrices lie is read on the device, so that a recorded step goes on when they come
and go. They and the tiles are older than the kernel before, and are read while that one still runs.
The length of a row is cut, each cut a program's; who expands what was shrunk adds the cuts.

Ranks are multiples of RANKS, filled up with zeros, so that all of a matrix is read by wide loads.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from python_backend.engine.cuda.kernels.expert_tiles import pairs_of
from python_backend.engine.cuda.kernels.overlap import overlap_options, wait_for_predecessor

ROWS = 16
RANKS = 16
_PARTS = 3  # at most, that have one input
# So many numbers of a second matrix are a program's.
_MOST_EXPANDED = 8192


class ShrinkTiling(NamedTuple):
    """What a program reads of a row, an equal part of it for each warp."""

    length: int
    num_warps: int


class ExpandTiling(NamedTuple):
    columns: int
    num_warps: int


def shrink_tiling(kind: torch.dtype) -> ShrinkTiling:
    """The fastest of those tried on an H200, from eight rows on."""
    return ShrinkTiling(2048 // kind.itemsize, 4)


def expand_tiling(rank: int, kind: torch.dtype) -> ExpandTiling:
    columns = min(256, _MOST_EXPANDED // rank) * 2 // kind.itemsize
    return ExpandTiling(max(16, columns), 4 if rank <= 64 else 8)


class RowTiles(NamedTuple):
    """Rows in the order of their adapters, and the tiles of up to ROWS of them, as `arrange` makes both."""

    order: torch.Tensor
    tiles: torch.Tensor


@triton.jit
def _tile_of(
    tile,
    order,
    tiles,
    tile_room,
    addresses,
    ranks,
    entry,
    table_width,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The rows of a tile, their positions in the order, and which there are; their matrix and its rank.

    Where nobody has the tile, or the adapter adds nothing here, the rank is 0 and there are no rows.
    """
    place = tl.load(tiles + tile)
    is_there = place >= 0
    position, has_row = pairs_of(tiles, tile_room, tile, ROWS)
    row = tl.load(order + position, mask=has_row & is_there, other=0).to(tl.int64)
    entry += place * table_width
    rank = tl.multiple_of(tl.load(ranks + entry, mask=is_there, other=0), 16)
    address = tl.load(addresses + entry, mask=is_there, other=0)
    matrix = tl.multiple_of(address.to(tl.pointer_type(KIND)), 16)
    return row, position, has_row & (rank > 0), matrix, rank


@triton.jit(do_not_specialize=["tile_room", "count", "table_width", "first", "blocks"])
def _shrink(
    out,
    rows,
    order,
    tiles,
    shrink_at,
    ranks,
    tile_room,
    count,
    length,
    table_width,
    first,
    blocks,
    ROWS: tl.constexpr,
    RANKS: tl.constexpr,
    SLICES: tl.constexpr,
    SLICE: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    tile, block, cut = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    kind: tl.constexpr = rows.dtype.element_ty
    row, position, has_row, matrix, rank = _tile_of(
        tile, order, tiles, tile_room, shrink_at, ranks, first + block // blocks, table_width, kind, ROWS
    )
    number = block % blocks * RANKS + tl.arange(0, RANKS)
    along = (cut * SLICES + tl.arange(0, SLICES))[:, None] * SLICE + tl.arange(0, SLICE)[None, :]
    is_inside = (along < length)[:, None, :]
    weights = tl.load(
        matrix + number[None, :, None] * length + along[:, None, :],
        mask=(number < rank)[None, :, None] & is_inside,
        other=0.0,
    )
    wait_for_predecessor(OVERLAPS)
    inputs = tl.load(
        rows + row[None, :, None] * length + along[:, None, :],
        mask=has_row[None, :, None] & is_inside,
        other=0.0,
    )
    # A slice for each warp: of one long sum, each step would wait for the one before.
    total = tl.sum(tl.dot(inputs, tl.permute(weights, (0, 2, 1)), input_precision="ieee"), axis=0)
    at = ((cut * tl.num_programs(1) + block) * count + position)[:, None] * RANKS
    tl.store(out + at + tl.arange(0, RANKS)[None, :], total, mask=has_row[:, None])


@triton.jit(do_not_specialize=["tile_room", "cuts", "blocks", "count", "table_width", "first"])
def _expand(
    out,
    shrunk,
    order,
    tiles,
    expand_at,
    ranks,
    tile_room,
    cuts,
    blocks,
    count,
    out_stride,
    table_width,
    first,
    width_0,
    width_1,
    width_2,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    RANKS: tl.constexpr,
    COLUMNS: tl.constexpr,
    RANK: tl.constexpr,
    CUTS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    tile, stretch = tl.program_id(0), tl.program_id(1)
    end_0 = tl.cdiv(width_0, COLUMNS)
    end_1 = end_0 + tl.cdiv(width_1, COLUMNS)
    part = (stretch >= end_0).to(tl.int32) + (stretch >= end_1).to(tl.int32)
    begin = tl.where(part == 0, 0, tl.where(part == 1, width_0, width_0 + width_1))
    width = tl.where(part == 0, width_0, tl.where(part == 1, width_1, width_2))
    stretch -= tl.where(part == 0, 0, tl.where(part == 1, end_0, end_1))
    row, position, has_row, matrix, rank = _tile_of(
        tile, order, tiles, tile_room, expand_at, ranks, first + part, table_width, KIND, ROWS
    )
    column = stretch * COLUMNS + tl.arange(0, COLUMNS)
    number = tl.arange(0, RANK)
    is_inside = column < width
    weights = tl.load(
        matrix + column[:, None] * rank + number[None, :],
        mask=is_inside[:, None] & (number < rank)[None, :],
        other=0.0,
    )
    wait_for_predecessor(OVERLAPS)
    target = out + row[:, None] * out_stride + begin + column[None, :]
    inside = has_row[:, None] & is_inside[None, :]
    before = tl.load(target, mask=inside, other=0.0)
    cut = tl.arange(0, CUTS)[:, None, None]
    block = cut * blocks + part * (RANK // RANKS) + (number // RANKS)[None, None, :]
    at = (block * count + position[None, :, None]) * RANKS + (number % RANKS)[None, None, :]
    shares = tl.load(shrunk + at, mask=(cut < cuts) & has_row[None, :, None], other=0.0)
    total = tl.dot(tl.sum(shares, axis=0).to(KIND), tl.trans(weights), input_precision="ieee")
    tl.store(target, before.to(tl.float32) + total, mask=inside)


_KINDS = {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


def shrink(
    rows: torch.Tensor,
    of: RowTiles,
    shrink_at: torch.Tensor,
    ranks: torch.Tensor,
    first: int,
    parts: int,
    rank: int,
    tiling: ShrinkTiling | None = None,
) -> torch.Tensor:
    """Rows times the first matrices of neighbouring parts, from entry `first` of each adapter's table on.

    Comes in cuts (cuts, parts and RANKS of each, rows in the order of the tiles, RANKS), to be added up.
    """
    count, length = rows.shape
    cut_length, num_warps = tiling or shrink_tiling(rows.dtype)
    cuts, blocks = triton.cdiv(length, cut_length), rank // RANKS
    out = torch.empty(cuts, parts * blocks, count, RANKS, dtype=torch.float32, device=rows.device)
    _shrink[(of.tiles.shape[1], parts * blocks, cuts)](
        out,
        rows,
        of.order,
        of.tiles,
        shrink_at,
        ranks,
        of.tiles.shape[1],
        count,
        length,
        shrink_at.shape[1],
        first,
        blocks,
        ROWS=ROWS,
        RANKS=RANKS,
        SLICES=num_warps,
        SLICE=cut_length // num_warps,
        num_warps=num_warps,
        **overlap_options(rows),
    )
    return out


def expand(
    out: torch.Tensor,
    shrunk: torch.Tensor,
    of: RowTiles,
    expand_at: torch.Tensor,
    ranks: torch.Tensor,
    first: int,
    widths: tuple[int, ...],
    kind: torch.dtype,
    tiling: ExpandTiling | None = None,
) -> None:
    """out += what was shrunk times the second matrices, which are of this `kind`, part beside part."""
    cuts, blocks, count, _ = shrunk.shape
    rank = blocks // len(widths) * RANKS
    columns, num_warps = tiling or expand_tiling(rank, kind)
    stretches = sum(triton.cdiv(width, columns) for width in widths)
    _expand[(of.tiles.shape[1], stretches)](
        out,
        shrunk,
        of.order,
        of.tiles,
        expand_at,
        ranks,
        of.tiles.shape[1],
        cuts,
        blocks,
        count,
        out.stride(0),
        expand_at.shape[1],
        first,
        *(*widths, 0, 0)[:_PARTS],
        KIND=_KINDS[kind],
        ROWS=ROWS,
        RANKS=RANKS,
        COLUMNS=columns,
        RANK=rank,
        CUTS=triton.next_power_of_2(cuts),
        num_warps=num_warps,
        **overlap_options(out),
    )
