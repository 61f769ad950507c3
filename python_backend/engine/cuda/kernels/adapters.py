"""What LoRA adapters add to products, for rows that have different ones.

A program takes a few neighbouring rows, and for each adapter among them reads that adapter's part once: rows
of a prompt have the same one, and a batch of single tokens has as many as there are. Where the adapters lie
is read on the device, so that a recorded step goes on when they come and go. The length of a row is cut, as
few programs would take long to walk it; who expands what was shrunk adds the cuts.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_ROWS, _LENGTH, _COLUMNS, _CUTS = 16, 128, 64, 8
_PARTS = 3  # at most, that have one input
_NOBODY = tl.constexpr(1 << 30)


@triton.jit(do_not_specialize=["count", "first"])
def _shrink(
    out,
    rows,
    places,
    shrink_at,
    ranks,
    count,
    length,
    table_width,
    first,
    ROWS: tl.constexpr,
    LENGTH: tl.constexpr,
    RANK: tl.constexpr,
    CUTS: tl.constexpr,
    PARTS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    part, cut = tl.program_id(1), tl.program_id(2)
    is_row = row < count
    place = tl.load(places + row, mask=is_row, other=-1)
    steps = tl.cdiv(length, LENGTH * CUTS)
    number = tl.arange(0, RANK)
    total = tl.zeros((ROWS, RANK), tl.float32)
    left = tl.where(place >= 0, place, _NOBODY)
    current = tl.min(left, axis=0)
    while current < _NOBODY:
        entry = current * table_width + first + part
        matrix = tl.load(shrink_at + entry).to(tl.pointer_type(rows.dtype.element_ty))
        rank = tl.load(ranks + entry)
        is_mine = place == current
        if rank > 0:
            for step in range(steps):
                along = (cut * steps + step) * LENGTH + tl.arange(0, LENGTH)
                is_inside = along < length
                inputs = tl.load(
                    rows + row.to(tl.int64)[:, None] * length + along[None, :],
                    mask=is_mine[:, None] & is_inside[None, :],
                    other=0.0,
                )
                weights = tl.load(
                    matrix + number[:, None] * length + along[None, :],
                    mask=(number < rank)[:, None] & is_inside[None, :],
                    other=0.0,
                )
                total = tl.dot(inputs, tl.trans(weights), total, input_precision="ieee")
        left = tl.where(left == current, _NOBODY, left)
        current = tl.min(left, axis=0)
    at = ((cut * PARTS + part) * count + row)[:, None] * RANK + number[None, :]
    tl.store(out + at, total, mask=is_row[:, None])


@triton.jit(do_not_specialize=["count", "first"])
def _expand(
    out,
    shrunk,
    places,
    expand_at,
    ranks,
    count,
    out_stride,
    table_width,
    first,
    width_0,
    width_1,
    width_2,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    RANK: tl.constexpr,
    CUTS: tl.constexpr,
    PARTS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tile = tl.program_id(1)
    tiles_0, tiles_1 = tl.cdiv(width_0, COLUMNS), tl.cdiv(width_1, COLUMNS)
    part = (tile >= tiles_0).to(tl.int32) + (tile >= tiles_0 + tiles_1).to(tl.int32)
    begin = tl.where(part == 0, 0, tl.where(part == 1, width_0, width_0 + width_1))
    width = tl.where(part == 0, width_0, tl.where(part == 1, width_1, width_2))
    tile -= tl.where(part == 0, 0, tl.where(part == 1, tiles_0, tiles_0 + tiles_1))
    is_row = row < count
    place = tl.load(places + row, mask=is_row, other=-1)
    column = tile * COLUMNS + tl.arange(0, COLUMNS)
    is_inside = column < width
    number = tl.arange(0, RANK)
    shares = tl.zeros((ROWS, RANK), tl.float32)
    for cut in range(CUTS):
        at = ((cut * PARTS + part) * count + row)[:, None] * RANK + number[None, :]
        shares += tl.load(shrunk + at, mask=is_row[:, None], other=0.0)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    left = tl.where(place >= 0, place, _NOBODY)
    current = tl.min(left, axis=0)
    has_any = current < _NOBODY
    while current < _NOBODY:
        entry = current * table_width + first + part
        matrix = tl.load(expand_at + entry).to(tl.pointer_type(KIND))
        rank = tl.load(ranks + entry)
        is_mine = place == current
        if rank > 0:
            weights = tl.load(
                matrix + column[:, None] * rank + number[None, :],
                mask=is_inside[:, None] & (number < rank)[None, :],
                other=0.0,
            )
            mine = tl.where(is_mine[:, None], shares, 0.0).to(KIND)
            total = tl.dot(mine, tl.trans(weights), total, input_precision="ieee")
        left = tl.where(left == current, _NOBODY, left)
        current = tl.min(left, axis=0)
    if has_any:
        target = out + row.to(tl.int64)[:, None] * out_stride + begin + column[None, :]
        inside = (is_row & (place >= 0))[:, None] & is_inside[None, :]
        before = tl.load(target, mask=inside, other=0.0)
        tl.store(target, before.to(tl.float32) + total, mask=inside)


_KINDS = {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


def shrink(
    rows: torch.Tensor,
    places: torch.Tensor,
    shrink_at: torch.Tensor,
    ranks: torch.Tensor,
    first: int,
    parts: int,
    rank: int,
) -> torch.Tensor:
    """Rows times the first matrices of neighbouring parts, from entry `first` of each adapter's table on."""
    count, length = rows.shape
    out = torch.empty(_CUTS, _PARTS, count, rank, dtype=torch.float32, device=rows.device)
    _shrink[(triton.cdiv(count, _ROWS), parts, _CUTS)](
        out,
        rows,
        places,
        shrink_at,
        ranks,
        count,
        length,
        shrink_at.shape[1],
        first,
        ROWS=_ROWS,
        LENGTH=_LENGTH,
        RANK=rank,
        CUTS=_CUTS,
        PARTS=_PARTS,
    )
    return out


def expand(
    out: torch.Tensor,
    shrunk: torch.Tensor,
    places: torch.Tensor,
    expand_at: torch.Tensor,
    ranks: torch.Tensor,
    first: int,
    widths: tuple[int, ...],
    kind: torch.dtype,
) -> None:
    """out += what was shrunk times the second matrices, which are of this `kind`, part beside part."""
    count, rank = shrunk.shape[2:]
    whole = (*widths, 0, 0)[:_PARTS]
    tiles = sum(triton.cdiv(width, _COLUMNS) for width in whole)
    _expand[(triton.cdiv(count, _ROWS), tiles)](
        out,
        shrunk,
        places,
        expand_at,
        ranks,
        count,
        out.stride(0),
        expand_at.shape[1],
        first,
        *whole,
        KIND=_KINDS[kind],
        ROWS=_ROWS,
        COLUMNS=_COLUMNS,
        RANK=rank,
        CUTS=_CUTS,
        PARTS=_PARTS,
    )
