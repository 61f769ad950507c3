"""A mixture of experts: rows choose, pairs of row and expert are brought together by expert, and multiplied.

A pair is one row's choice: pair p is choice p % PER_TOKEN of row p // PER_TOKEN. How many pairs an expert has
is known on the device alone, so the products run over a table of tiles, each a stretch of at most BLOCK_M
pairs of one expert. It has room for the worst case; programs of tiles that are not there end at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from python_backend.engine.cuda.kernels.activation import activated

# Tiles whose programs run next to each other, so that they find the same weights in the cache.
_GROUP_TILES = 16
# Up to here all pairs are looked at in one go.
FEW_PAIRS = 512


@dataclass(frozen=True, slots=True)
class Blocks:
    """What one program multiplies: `m` pairs with `n` of an expert's rows, `k` columns at a time."""

    m: int
    n: int
    k: int
    warps: int
    stages: int


@triton.jit
def _route(
    chosen,
    shares,
    logits,
    EXPERTS: tl.constexpr,
    PER_TOKEN: tl.constexpr,
    RENORMALIZES: tl.constexpr,
    TILE_EXPERTS: tl.constexpr,
    TILE_CHOICES: tl.constexpr,
):
    row = tl.program_id(0)
    experts = tl.arange(0, TILE_EXPERTS)
    inside = experts < EXPERTS
    logit = tl.load(logits + row * EXPERTS + experts, mask=inside, other=float("-inf"))
    powers = tl.exp(logit - tl.max(logit, axis=0))
    left = tl.where(inside, powers / tl.sum(powers, axis=0), -1.0)
    choices = tl.arange(0, TILE_CHOICES)
    ids = tl.zeros((TILE_CHOICES,), tl.int32)
    share = tl.zeros((TILE_CHOICES,), tl.float32)
    for choice in tl.static_range(PER_TOKEN):
        # The lowest of equals; a row that is not a number must choose one that exists, too.
        best = tl.minimum(tl.argmax(left, axis=0), EXPERTS - 1)
        share = tl.where(choices == choice, tl.max(left, axis=0), share)
        ids = tl.where(choices == choice, best, ids)
        left = tl.where(experts == best, -1.0, left)
    if RENORMALIZES:
        share = share / tl.sum(share, axis=0)
    place = row * PER_TOKEN + choices
    tl.store(chosen + place, ids, mask=choices < PER_TOKEN)
    tl.store(shares + place, share, mask=choices < PER_TOKEN)


def route(logits: torch.Tensor, per_token: int, renormalizes: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """From (rows, experts) in fp32 to the chosen experts and their shares, (rows, per_token) each."""
    rows, experts = logits.shape
    chosen = torch.empty(rows, per_token, dtype=torch.int32, device=logits.device)
    shares = torch.empty(rows, per_token, dtype=torch.float32, device=logits.device)
    _route[(rows,)](
        chosen,
        shares,
        logits,
        EXPERTS=experts,
        PER_TOKEN=per_token,
        RENORMALIZES=renormalizes,
        TILE_EXPERTS=triton.next_power_of_2(experts),
        TILE_CHOICES=triton.next_power_of_2(per_token),
        num_warps=1,
    )
    return chosen, shares


@triton.jit(do_not_specialize=["pairs", "tile_room"])
def _arrange(
    order,
    tiles,
    chosen,
    pairs,
    tile_room,
    BLOCK_M: tl.constexpr,
    BINS: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE_BLOCK: tl.constexpr,
):
    """One program an expert. Each counts all pairs for itself: that is cheaper than one more launch."""
    expert = tl.program_id(0)
    counts = tl.zeros((BINS,), tl.int32)
    for start in range(0, pairs, BLOCK):
        place = start + tl.arange(0, BLOCK)
        ids = tl.load(chosen + place, mask=place < pairs, other=0)
        counts += tl.histogram(ids, BINS, mask=place < pairs)
    bins = tl.arange(0, BINS)
    tile_counts = (counts + BLOCK_M - 1) // BLOCK_M
    first = tl.sum(tl.where(bins < expert, counts, 0), axis=0)
    end = first + tl.sum(tl.where(bins == expert, counts, 0), axis=0)
    first_tile = tl.sum(tl.where(bins < expert, tile_counts, 0), axis=0)
    own_tiles = tl.sum(tl.where(bins == expert, tile_counts, 0), axis=0)

    for start in range(0, own_tiles, TILE_BLOCK):
        tile = start + tl.arange(0, TILE_BLOCK)
        inside = tile < own_tiles
        tile_first = first + tile * BLOCK_M
        tl.store(tiles + first_tile + tile, tl.zeros_like(tile) + expert, mask=inside)
        tl.store(tiles + tile_room + first_tile + tile, tile_first, mask=inside)
        tl.store(
            tiles + 2 * tile_room + first_tile + tile, tl.minimum(tile_first + BLOCK_M, end), mask=inside
        )
    if expert == 0:
        for start in range(tl.sum(tile_counts, axis=0), tile_room, TILE_BLOCK):
            tile = start + tl.arange(0, TILE_BLOCK)
            tl.store(tiles + tile, tl.zeros_like(tile) - 1, mask=tile < tile_room)

    placed = first
    for start in range(0, pairs, BLOCK):
        place = start + tl.arange(0, BLOCK)
        ids = tl.load(chosen + place, mask=place < pairs, other=-1)
        own = (ids == expert).to(tl.int32)
        tl.store(order + placed + tl.cumsum(own, axis=0) - 1, place, mask=ids == expert)
        placed += tl.sum(own, axis=0)


def arrange(chosen: torch.Tensor, experts: int, block_m: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The pairs sorted by expert, and the tiles (3, room): expert or -1, first and end in that order."""
    pairs = chosen.numel()
    busy = min(experts, pairs)
    tile_room = busy + (pairs - busy) // block_m
    order = torch.empty(pairs, dtype=torch.int32, device=chosen.device)
    tiles = torch.empty(3, tile_room, dtype=torch.int32, device=chosen.device)
    is_small = pairs <= FEW_PAIRS
    _arrange[(experts,)](
        order,
        tiles,
        chosen,
        pairs,
        tile_room,
        BLOCK_M=block_m,
        BINS=max(2, triton.next_power_of_2(experts)),
        BLOCK=FEW_PAIRS if is_small else 4096,
        TILE_BLOCK=128,
        num_warps=4 if is_small else 8,
    )
    return order, tiles


@triton.jit
def _place_in_grid(tile_room, BLOCKS_N: tl.constexpr, GROUP: tl.constexpr):
    """Which tile, and which block of its expert's outputs, this program has."""
    program = tl.program_id(0)
    first_tile = program // (GROUP * BLOCKS_N) * GROUP
    group = tl.minimum(tile_room - first_tile, GROUP)
    within = program % (GROUP * BLOCKS_N)
    return first_tile + within % group, within // group


@triton.jit(do_not_specialize=["tile_room"])
def _gate_up(
    out,
    rows,
    matrices,
    order,
    tiles,
    tile_room,
    HIDDEN: tl.constexpr,
    INTERMEDIATE: tl.constexpr,
    PER_TOKEN: tl.constexpr,
    IS_GELU: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    tile, block_n = _place_in_grid(tile_room, tl.cdiv(INTERMEDIATE, BLOCK_N), GROUP)
    expert = tl.load(tiles + tile)
    if expert < 0:
        return
    places = tl.load(tiles + tile_room + tile) + tl.arange(0, BLOCK_M)
    has_pair = places < tl.load(tiles + 2 * tile_room + tile)
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
    # Rounded where a product and an activation of their own would round.
    dtype = out.dtype.element_ty
    gated = activated(gate.to(dtype).to(tl.float32), IS_GELU).to(dtype).to(tl.float32) * up.to(dtype).to(
        tl.float32
    )
    target = out + places.to(tl.int64)[:, None] * INTERMEDIATE + outputs[None, :]
    tl.store(target, gated.to(dtype), mask=has_pair[:, None] & has_output[None, :])


@triton.jit(do_not_specialize=["tile_room"])
def _down(
    out,
    gated,
    matrices,
    shares,
    order,
    tiles,
    tile_room,
    HIDDEN: tl.constexpr,
    INTERMEDIATE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    tile, block_n = _place_in_grid(tile_room, tl.cdiv(HIDDEN, BLOCK_N), GROUP)
    expert = tl.load(tiles + tile)
    if expert < 0:
        return
    places = tl.load(tiles + tile_room + tile) + tl.arange(0, BLOCK_M)
    has_pair = places < tl.load(tiles + 2 * tile_room + tile)
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
    total *= tl.load(shares + pairs, mask=has_pair, other=0.0)[:, None]
    target = out + pairs.to(tl.int64)[:, None] * HIDDEN + outputs[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=has_pair[:, None] & has_output[None, :])


def multiply_gate_up(
    rows: torch.Tensor,
    matrices: torch.Tensor,
    order: torch.Tensor,
    tiles: torch.Tensor,
    per_token: int,
    is_gelu: bool,
    blocks: Blocks,
) -> torch.Tensor:
    """Activated gates times ups, (pairs, intermediate), in the pairs' order by expert."""
    intermediate, hidden = matrices.shape[1] // 2, matrices.shape[2]
    out = rows.new_empty(len(order), intermediate)
    _gate_up[(tiles.shape[1] * triton.cdiv(intermediate, blocks.n),)](
        out,
        rows,
        matrices,
        order,
        tiles,
        tiles.shape[1],
        HIDDEN=hidden,
        INTERMEDIATE=intermediate,
        PER_TOKEN=per_token,
        IS_GELU=is_gelu,
        BLOCK_M=blocks.m,
        BLOCK_N=blocks.n,
        BLOCK_K=blocks.k,
        GROUP=_GROUP_TILES,
        num_warps=blocks.warps,
        num_stages=blocks.stages,
    )
    return out


def multiply_down(
    gated: torch.Tensor,
    matrices: torch.Tensor,
    shares: torch.Tensor,
    order: torch.Tensor,
    tiles: torch.Tensor,
    blocks: Blocks,
) -> torch.Tensor:
    """What experts give to their rows, times the shares: (pairs, hidden), a row's choices side by side."""
    hidden, intermediate = matrices.shape[1:]
    out = gated.new_empty(len(order), hidden)
    _down[(tiles.shape[1] * triton.cdiv(hidden, blocks.n),)](
        out,
        gated,
        matrices,
        shares,
        order,
        tiles,
        tiles.shape[1],
        HIDDEN=hidden,
        INTERMEDIATE=intermediate,
        BLOCK_M=blocks.m,
        BLOCK_N=blocks.n,
        BLOCK_K=blocks.k,
        GROUP=_GROUP_TILES,
        num_warps=blocks.warps,
        num_stages=blocks.stages,
    )
    return out
