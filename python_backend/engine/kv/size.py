"""How much memory keys and values take."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from python_backend.engine.models.decoder import DecoderShape

GIB = 1 << 30
# Kernels read whole vectors of so many numbers: a block's keys run along its slots, values along dimensions.
_LANES = 16


def kv_bytes_per_number(is_exact: bool) -> int:
    """On the CPU: half precision, but where the weights are kept as exact as they were trained."""
    return 4 if is_exact else 2


def kv_bytes_per_block(shape: DecoderShape, layers: int, tokens_per_block: int, number_bytes: int) -> int:
    """With the padding that goes with it."""
    keys = shape.head_dim * _padded(tokens_per_block)
    values = tokens_per_block * _padded(shape.head_dim)
    return layers * shape.kv_heads * (keys + values) * number_bytes


def _padded(count: int) -> int:
    return -(-count // _LANES) * _LANES


def default_blocks(block_bytes: int, blocks_of_longest: int) -> int:
    """How many to have when nobody said: 1 GiB of them, or up to 2 GiB if one full sequence needs it.

    Memory is only taken as blocks are first written, so an idle engine does not hold all of it.
    """
    blocks_per_gib = GIB // block_bytes
    return max(1, blocks_per_gib, min(blocks_of_longest, 2 * blocks_per_gib))
