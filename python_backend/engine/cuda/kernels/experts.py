"""A mixture of experts: rows choose, and pairs of row and expert are brought together by expert.

A pair is one row's choice: pair p is choice p % PER_TOKEN of row p // PER_TOKEN. How many pairs an expert has
is known on the device alone, so the products run over a table of tiles, each a stretch of at most BLOCK_M
pairs of one expert. It has room for the worst case; programs of tiles that are not there end at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

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
    SHARED: tl.constexpr,
    RENORMALIZES: tl.constexpr,
    TILE_EXPERTS: tl.constexpr,
    TILE_CHOICES: tl.constexpr,
):
    row = tl.program_id(0)
    experts = tl.arange(0, TILE_EXPERTS)
    inside = experts < EXPERTS
    scores = logits + row * (EXPERTS + (1 if SHARED > 0 else 0))
    logit = tl.load(scores + experts, mask=inside, other=float("-inf"))
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
    if SHARED > 0:
        is_shared = choices >= PER_TOKEN
        ids = tl.where(is_shared, EXPERTS + choices - PER_TOKEN, ids)
        share = tl.where(is_shared, tl.sigmoid(tl.load(scores + EXPERTS)), share)
    place = row * (PER_TOKEN + SHARED) + choices
    tl.store(chosen + place, ids, mask=choices < PER_TOKEN + SHARED)
    tl.store(shares + place, share, mask=choices < PER_TOKEN + SHARED)


def route(
    logits: torch.Tensor, per_token: int, renormalizes: bool, shared: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """From (rows, scores) in fp32 to the experts of each row and their shares, (rows, passes) each.

    Where all rows go through the `shared` experts behind the others, their score is the last.
    """
    rows, experts = logits.shape
    passes = per_token + shared
    experts -= 1 if shared else 0
    chosen = torch.empty(rows, passes, dtype=torch.int32, device=logits.device)
    shares = torch.empty(rows, passes, dtype=torch.float32, device=logits.device)
    _route[(rows,)](
        chosen,
        shares,
        logits,
        EXPERTS=experts,
        PER_TOKEN=per_token,
        SHARED=shared,
        RENORMALIZES=renormalizes,
        TILE_EXPERTS=triton.next_power_of_2(experts),
        TILE_CHOICES=triton.next_power_of_2(passes),
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
        ids = tl.load(chosen + place, mask=place < pairs, other=-1)
        counts += tl.histogram(ids, BINS, mask=ids >= 0)
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
    """The pairs sorted by expert, and the tiles (3, room): expert or -1, first and end in that order.

    Pairs that have chosen -1 are in no tile.
    """
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
def place_in_grid(tile_room, BLOCKS_N: tl.constexpr, GROUP: tl.constexpr):
    """Which tile, and which block of its expert's outputs, this program has."""
    program = tl.program_id(0)
    first_tile = program // (GROUP * BLOCKS_N) * GROUP
    group = tl.minimum(tile_room - first_tile, GROUP)
    within = program % (GROUP * BLOCKS_N)
    return first_tile + within % group, within // group
