"""Few rows against a matrix: bound by reading the matrix, which is cut along its rows' length as well.

A library's product leaves multiprocessors idle where the matrix has few rows. Here each part of the length is
summed up by a program of its own, and whoever needs the product anyway (the norm behind it) adds the parts.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl


class SkinnyTiling(NamedTuple):
    """What a program takes at a time, and into how many parts a row's length is cut."""

    rows: int
    outputs: int
    length: int
    parts: int
    num_warps: int
    num_stages: int


def skinny_tiling(rows: int) -> SkinnyTiling | None:
    """The fastest of those tried on an H200; None where a library's product is faster."""
    if 1 < rows <= 64:
        return SkinnyTiling(max(16, triton.next_power_of_2(rows)), 64, 128, 2, 4, 4)
    return None


@triton.jit(do_not_specialize=["count"])
def _multiply(
    parts,
    rows,
    matrix,
    count,
    outputs,
    length,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    LENGTH: tl.constexpr,
    PARTS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    part = tl.program_id(2)
    steps = length // (LENGTH * PARTS)
    along = part * steps * LENGTH + tl.arange(0, LENGTH)
    weights = matrix + output.to(tl.int64)[:, None] * length + along[None, :]
    inputs = rows + row[None, :] * length + along[:, None]
    is_row = (row < count)[None, :]
    total = tl.zeros((OUTPUTS, ROWS), tl.float32)
    for _ in range(steps):
        weight = tl.load(weights, eviction_policy="evict_first")
        total = tl.dot(weight, tl.load(inputs, mask=is_row, other=0.0), total, input_precision="ieee")
        weights += LENGTH
        inputs += LENGTH
    place = (part * count + row)[None, :] * outputs + output[:, None]
    tl.store(parts + place, total, mask=is_row)


def suits_skinny_product(rows: int, matrix: torch.Tensor) -> bool:
    tiling = skinny_tiling(rows)
    if tiling is None:
        return False
    outputs, length = matrix.shape
    return outputs % tiling.outputs == 0 and length % (tiling.length * tiling.parts) == 0


def skinny_product(
    rows: torch.Tensor, matrix: torch.Tensor, tiling: SkinnyTiling | None = None
) -> torch.Tensor:
    """rows · matrixᵀ in parts that are still to be added: (parts, rows, outputs) in fp32."""
    count, length = rows.shape
    outputs = len(matrix)
    tiling = tiling or skinny_tiling(count)
    assert tiling is not None
    parts = torch.empty(tiling.parts, count, outputs, dtype=torch.float32, device=rows.device)
    _multiply[(triton.cdiv(count, tiling.rows), outputs // tiling.outputs, tiling.parts)](
        parts,
        rows,
        matrix,
        count,
        outputs,
        length,
        ROWS=tiling.rows,
        OUTPUTS=tiling.outputs,
        LENGTH=tiling.length,
        PARTS=tiling.parts,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )
    return parts
