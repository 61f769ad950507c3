"""What both attention kernels share: tiles of the paged cache, and the softmax carried from tile to tile."""

import math
from typing import Any

import torch
import triton
import triton.language as tl

LOG2_E = math.log2(math.e)
# Below every score, yet finite: a row that has seen only masked tokens must not become inf - inf.
LOWEST: Any = tl.constexpr(-1.0e30)


def padded_dim(head_dim: int) -> int:
    """A power of two, and no less than what the matrix units multiply at a time."""
    return max(16, int(triton.next_power_of_2(head_dim)))


def score_factors(scale: float, softcap: float | None) -> tuple[float, float]:
    """(inner, outer): scores to the base two are `outer * qk`, with a softcap `outer * tanh(inner * qk)`."""
    if softcap is None:
        return 1.0, scale * LOG2_E
    return scale / softcap, softcap * LOG2_E


def product_type(queries: torch.Tensor, keys: torch.Tensor) -> tl.dtype:
    """What both products are computed in: fp16 has all numbers of fp8, and one instruction converts two.

    To bf16 it takes three.
    """
    if queries.dtype == torch.float32:
        return tl.float32
    return tl.float16 if keys.dtype == torch.float8_e4m3fn else tl.bfloat16


@triton.jit
def tile_blocks(table, first_token, end_token, TOKENS_PER_BLOCK: tl.constexpr, TILE: tl.constexpr):
    """The block a tile lies in, or the block of each of its tokens where a tile may lie in several.

    Loops fetch the next tile's blocks a round early: a load that waits for another load in the same round
    would take a stage of the pipeline away. Table entries past the sequence's end are old: they are not read.
    """
    if TOKENS_PER_BLOCK % TILE == 0:
        blocks = tl.load(table + tl.minimum(first_token, end_token - 1) // TOKENS_PER_BLOCK)
    else:
        tokens = first_token + tl.arange(0, TILE)
        blocks = tl.load(table + tokens // TOKENS_PER_BLOCK, mask=tokens < end_token, other=0)
    return blocks


@triton.jit
def tile_offsets(
    blocks,
    first_token,
    head,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    TOKENS_PER_BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):
    """Offsets of a tile's elements in the cache, the same in keys and values."""
    in_tile = tl.arange(0, TILE)
    dims = tl.arange(0, PADDED_DIM)
    starts = (blocks.to(tl.int64) * KV_HEADS + head) * TOKENS_PER_BLOCK
    if TOKENS_PER_BLOCK % TILE == 0:
        start = (starts + first_token % TOKENS_PER_BLOCK) * HEAD_DIM
        offsets = start + (in_tile[:, None] * HEAD_DIM + dims[None, :])
    else:
        starts += (first_token + in_tile) % TOKENS_PER_BLOCK
        offsets = starts[:, None] * HEAD_DIM + dims[None, :]
    return offsets


@triton.jit
def soft_capped(scores, inner):
    """tanh(inner * scores), exact at both ends because 2 / inf is 0."""
    return 1.0 - 2.0 / (tl.exp2(scores * (inner * 2.8853900817779268)) + 1.0)


@triton.jit
def soften(scores, outer, peaks, totals):
    """A tile's weights, what brings earlier tiles to the new peaks, the new peaks, the new totals."""
    new_peaks = tl.maximum(peaks, tl.max(scores, 1) * outer)
    weights = tl.exp2(scores * outer - new_peaks[:, None])
    shrink = tl.exp2(peaks - new_peaks)
    return weights, shrink, new_peaks, totals * shrink + tl.sum(weights, 1)
