"""The products of a mixture of experts, over the tiles of pairs that `experts.arrange` makes."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from python_backend.engine.cuda.kernels.expert_tiles import pairs_of, store_gated, store_weighed
from python_backend.engine.cuda.kernels.experts import Blocks, place_in_grid
from python_backend.engine.cuda.kernels.grouped import GroupedArrays, constants
from python_backend.engine.cuda.kernels.grouped_expert_products import grouped_down, grouped_gate_up

# Tiles whose programs run next to each other, so that they find the same weights in the cache.
_GROUP_TILES = 16


@triton.jit(do_not_specialize=["tile_room"])
def _gate_up(
    out,
    rows,
    matrices,
    bias,
    order,
    tiles,
    tile_room,
    HIDDEN: tl.constexpr,
    INTERMEDIATE: tl.constexpr,
    PER_TOKEN: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_GELU: tl.constexpr,
    LIMIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    tile, block_n = place_in_grid(tile_room, tl.cdiv(INTERMEDIATE, BLOCK_N), GROUP)
    expert = tl.load(tiles + tile)
    if expert < 0:
        return
    places, has_pair = pairs_of(tiles, tile_room, tile, BLOCK_M)
    pairs = tl.load(order + places, mask=has_pair, other=0)
    outputs = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    has_output = outputs < INTERMEDIATE
    columns = tl.arange(0, BLOCK_K)
    x_at = rows + (pairs // PER_TOKEN).to(tl.int64)[:, None] * HIDDEN + columns[None, :]
    gate_at = (
        matrices
        + expert.to(tl.int64) * 2 * INTERMEDIATE * HIDDEN
        + outputs[None, :] * HIDDEN
        + columns[:, None]
    )
    gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, HIDDEN, BLOCK_K):
        has_column = start + columns < HIDDEN
        x = tl.load(x_at + start, mask=has_pair[:, None] & has_column[None, :], other=0.0)
        mask = has_output[None, :] & has_column[:, None]
        gates = tl.load(gate_at + start, mask=mask, other=0.0)
        ups = tl.load(gate_at + start + INTERMEDIATE * HIDDEN, mask=mask, other=0.0)
        gate = tl.dot(x, gates, gate, input_precision="ieee")
        up = tl.dot(x, ups, up, input_precision="ieee")
    inside = has_pair[:, None] & has_output[None, :]
    store_gated(out, gate, up, bias, expert, places, outputs, inside, INTERMEDIATE, HAS_BIAS, IS_GELU, LIMIT)


@triton.jit(do_not_specialize=["tile_room"])
def _down(
    out,
    gated,
    matrices,
    bias,
    shares,
    order,
    tiles,
    tile_room,
    HIDDEN: tl.constexpr,
    INTERMEDIATE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    tile, block_n = place_in_grid(tile_room, tl.cdiv(HIDDEN, BLOCK_N), GROUP)
    expert = tl.load(tiles + tile)
    if expert < 0:
        return
    places, has_pair = pairs_of(tiles, tile_room, tile, BLOCK_M)
    outputs = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    has_output = outputs < HIDDEN
    columns = tl.arange(0, BLOCK_K)
    x_at = gated + places.to(tl.int64)[:, None] * INTERMEDIATE + columns[None, :]
    weight_at = (
        matrices
        + expert.to(tl.int64) * HIDDEN * INTERMEDIATE
        + outputs[None, :] * INTERMEDIATE
        + columns[:, None]
    )
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, INTERMEDIATE, BLOCK_K):
        has_column = start + columns < INTERMEDIATE
        x = tl.load(x_at + start, mask=has_pair[:, None] & has_column[None, :], other=0.0)
        weights = tl.load(weight_at + start, mask=has_output[None, :] & has_column[:, None], other=0.0)
        total = tl.dot(x, weights, total, input_precision="ieee")
    pairs = tl.load(order + places, mask=has_pair, other=0)
    store_weighed(out, total, bias, shares, expert, pairs, has_pair, outputs, HIDDEN, HAS_BIAS)


def multiply_gate_up(
    rows: torch.Tensor,
    matrices: torch.Tensor | GroupedArrays,
    bias: torch.Tensor | None,
    order: torch.Tensor,
    tiles: torch.Tensor,
    per_token: int,
    is_gelu: bool,
    limit: float | None,
    blocks: Blocks,
) -> torch.Tensor:
    """Activated gates times ups, (pairs, intermediate), in the pairs' order by expert."""
    doubled = matrices.outputs if isinstance(matrices, GroupedArrays) else matrices.shape[1]
    intermediate = doubled // 2
    out = rows.new_empty(len(order), intermediate)
    grid = (tiles.shape[1] * triton.cdiv(intermediate, blocks.n),)
    places = (rows if bias is None else bias, order, tiles, tiles.shape[1])
    options = {
        "INTERMEDIATE": intermediate,
        "PER_TOKEN": per_token,
        "HAS_BIAS": bias is not None,
        "IS_GELU": is_gelu,
        "LIMIT": limit or 0.0,
        **_block_options(blocks),
    }
    if isinstance(matrices, GroupedArrays):
        grouped_gate_up[grid](
            out,
            rows,
            *_arrays(matrices),
            *places,
            GROUP_TILES=_GROUP_TILES,
            STAGES=blocks.stages,
            **options,
            **constants(matrices),
        )
    else:
        _gate_up[grid](
            out,
            rows,
            matrices,
            *places,
            HIDDEN=matrices.shape[2],
            BLOCK_K=blocks.k,
            GROUP=_GROUP_TILES,
            **options,
        )
    return out


def multiply_down(
    gated: torch.Tensor,
    matrices: torch.Tensor | GroupedArrays,
    bias: torch.Tensor | None,
    shares: torch.Tensor,
    order: torch.Tensor,
    tiles: torch.Tensor,
    blocks: Blocks,
) -> torch.Tensor:
    """What experts give to their rows, times the shares: (pairs, hidden), a row's choices side by side."""
    hidden = matrices.outputs if isinstance(matrices, GroupedArrays) else matrices.shape[1]
    out = gated.new_empty(len(order), hidden)
    grid = (tiles.shape[1] * triton.cdiv(hidden, blocks.n),)
    places = (gated if bias is None else bias, shares, order, tiles, tiles.shape[1])
    options = {"HIDDEN": hidden, "HAS_BIAS": bias is not None, **_block_options(blocks)}
    if isinstance(matrices, GroupedArrays):
        grouped_down[grid](
            out,
            gated,
            *_arrays(matrices),
            *places,
            GROUP_TILES=_GROUP_TILES,
            STAGES=blocks.stages,
            **options,
            **constants(matrices),
        )
    else:
        _down[grid](
            out,
            gated,
            matrices,
            *places,
            INTERMEDIATE=matrices.shape[2],
            BLOCK_K=blocks.k,
            GROUP=_GROUP_TILES,
            **options,
        )
    return out


def _arrays(matrices: GroupedArrays) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    offsets = matrices.scales if matrices.offsets is None else matrices.offsets
    return matrices.levels, matrices.scales, offsets


def _block_options(blocks: Blocks) -> dict[str, int]:
    return {
        "BLOCK_M": blocks.m,
        "BLOCK_N": blocks.n,
        "num_warps": blocks.warps,
        "num_stages": blocks.stages,
    }
