"""The same products for experts whose weights are quantised in groups."""

from __future__ import annotations

import triton
import triton.language as tl

from python_backend.engine.cuda.kernels.expert_tiles import pairs_of, store_gated, store_weighed
from python_backend.engine.cuda.kernels.experts import place_in_grid
from python_backend.engine.cuda.kernels.grouped import MOST_ROWS_BY_SUMS, grouped_total


@triton.jit
def _grouped_total(
    x_at,
    has_pair,
    levels,
    scales,
    offsets,
    expert,
    output,
    has_output,
    ALL_OUTPUTS: tl.constexpr,
    WIDTH: tl.constexpr,
    LENGTH: tl.constexpr,
    GROUP: tl.constexpr,
    STRETCH: tl.constexpr,
    LAYOUT: tl.constexpr,
    PER_STEP: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    dtype: tl.constexpr,
):
    """(pairs, outputs): the pairs' rows times these outputs of an expert whose weights are in groups."""
    place = expert.to(tl.int64) * ALL_OUTPUTS + output
    sizes = expert.to(tl.int64) * (LENGTH // GROUP) * ALL_OUTPUTS + output
    total = grouped_total(
        x_at[None, :], has_pair, levels + place[:, None] * WIDTH, scales + sizes, offsets + sizes, has_output,
        ALL_OUTPUTS, 0, WIDTH // STRETCH, LENGTH, GROUP, STRETCH, LAYOUT, PER_STEP, HAS_OFFSETS,
        BLOCK_M <= MOST_ROWS_BY_SUMS, BLOCK_M, BLOCK_N, STAGES, dtype,
    )  # fmt: skip
    return tl.trans(total)


@triton.jit(do_not_specialize=["tile_room"])
def grouped_gate_up(
    out,
    rows,
    levels,
    scales,
    offsets,
    bias,
    order,
    tiles,
    tile_room,
    INTERMEDIATE: tl.constexpr,
    PER_TOKEN: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_GELU: tl.constexpr,
    LIMIT: tl.constexpr,
    WIDTH: tl.constexpr,
    LENGTH: tl.constexpr,
    GROUP: tl.constexpr,
    STRETCH: tl.constexpr,
    LAYOUT: tl.constexpr,
    PER_STEP: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    GROUP_TILES: tl.constexpr,
):
    tile, block_n = place_in_grid(tile_room, tl.cdiv(INTERMEDIATE, BLOCK_N), GROUP_TILES)
    expert = tl.load(tiles + tile)
    if expert < 0:
        return
    places, has_pair = pairs_of(tiles, tile_room, tile, BLOCK_M)
    pairs = tl.load(order + places, mask=has_pair, other=0)
    outputs = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    has_output = outputs < INTERMEDIATE
    x_at = rows + (pairs // PER_TOKEN).to(tl.int64) * LENGTH
    dtype: tl.constexpr = rows.dtype.element_ty
    gate = _grouped_total(
        x_at, has_pair, levels, scales, offsets, expert, outputs, has_output, 2 * INTERMEDIATE, WIDTH, LENGTH,
        GROUP, STRETCH, LAYOUT, PER_STEP, HAS_OFFSETS, BLOCK_M, BLOCK_N, STAGES, dtype,
    )  # fmt: skip
    up = _grouped_total(
        x_at, has_pair, levels, scales, offsets, expert, INTERMEDIATE + outputs, has_output, 2 * INTERMEDIATE,
        WIDTH, LENGTH, GROUP, STRETCH, LAYOUT, PER_STEP, HAS_OFFSETS, BLOCK_M, BLOCK_N, STAGES, dtype,
    )  # fmt: skip
    inside = has_pair[:, None] & has_output[None, :]
    store_gated(out, gate, up, bias, expert, places, outputs, inside, INTERMEDIATE, HAS_BIAS, IS_GELU, LIMIT)


@triton.jit(do_not_specialize=["tile_room"])
def grouped_down(
    out,
    gated,
    levels,
    scales,
    offsets,
    bias,
    shares,
    order,
    tiles,
    tile_room,
    HIDDEN: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WIDTH: tl.constexpr,
    LENGTH: tl.constexpr,
    GROUP: tl.constexpr,
    STRETCH: tl.constexpr,
    LAYOUT: tl.constexpr,
    PER_STEP: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    GROUP_TILES: tl.constexpr,
):
    tile, block_n = place_in_grid(tile_room, tl.cdiv(HIDDEN, BLOCK_N), GROUP_TILES)
    expert = tl.load(tiles + tile)
    if expert < 0:
        return
    places, has_pair = pairs_of(tiles, tile_room, tile, BLOCK_M)
    outputs = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    total = _grouped_total(
        gated + places.to(tl.int64) * LENGTH, has_pair, levels, scales, offsets, expert, outputs,
        outputs < HIDDEN, HIDDEN, WIDTH, LENGTH, GROUP, STRETCH, LAYOUT, PER_STEP, HAS_OFFSETS, BLOCK_M,
        BLOCK_N, STAGES, gated.dtype.element_ty,
    )  # fmt: skip
    pairs = tl.load(order + places, mask=has_pair, other=0)
    store_weighed(out, total, bias, shares, expert, pairs, has_pair, outputs, HIDDEN, HAS_BIAS)
