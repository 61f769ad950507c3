"""How much memory keys and values take."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from python_backend.engine.models.decoder import DecoderShape

GIB = 1 << 30


def kv_bytes_per_token(shape: DecoderShape) -> int:
    return shape.layers * 2 * shape.kv_heads * shape.head_dim * 4


def default_kv_tokens(bytes_per_token: int, max_sequence_tokens: int) -> int:
    """How many tokens to keep when nobody said: 1 GiB of them, or up to 2 GiB if one full sequence needs it.

    Memory is only taken as blocks are first written, so an idle engine does not hold all of it.
    """
    tokens_per_gib = GIB // bytes_per_token
    return max(1, tokens_per_gib, min(max_sequence_tokens, 2 * tokens_per_gib))
