"""Where keys and values live: one tensor of blocks for each layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class KvShape:
    """What one token leaves behind in every layer."""

    layers: int
    kv_heads: int
    head_dim: int

    @property
    def floats_per_slot(self) -> int:
        return 2 * self.kv_heads * self.head_dim

    @property
    def bytes_per_token(self) -> int:
        return self.layers * self.floats_per_slot * 4


def default_kv_tokens(shape: KvShape, max_sequence_tokens: int) -> int:
    """How many tokens to keep when nobody said: 1 GiB of them, or up to 2 GiB if one full sequence needs it.

    Memory is only taken as blocks are first written, so an idle engine does not hold all of it.
    """
    tokens_per_gib = GIB // shape.bytes_per_token
    return max(1, tokens_per_gib, min(max_sequence_tokens, 2 * tokens_per_gib))


class KvCache:
    """`layers[i]` is (blocks, slots, floats); a slot holds one token's keys, then its values, head by head.

    Keys and values share a row so that one index, made once a step, writes or reads both in every layer.
    """

    def __init__(self, shape: KvShape, total_blocks: int, tokens_per_block: int) -> None:
        self.shape = shape
        self.tokens_per_block = tokens_per_block
        self.layers = [
            torch.zeros(total_blocks, tokens_per_block, shape.floats_per_slot) for _ in range(shape.layers)
        ]
        self._slots = [layer.view(-1, shape.floats_per_slot) for layer in self.layers]

    def write(self, layer: int, slots: torch.Tensor, rows: torch.Tensor) -> None:
        self._slots[layer].index_copy_(0, slots, rows)

    def read(self, layer: int, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of (sequences, blocks) as (sequences, kv_heads, tokens, head_dim) each."""
        sequences, width = blocks.shape
        rows = self.layers[layer].index_select(0, blocks.view(-1))
        heads = rows.view(
            sequences, width * self.tokens_per_block, 2, self.shape.kv_heads, self.shape.head_dim
        )
        keys, values = heads.unbind(2)
        return keys.transpose(1, 2), values.transpose(1, 2)

    def clear(self, blocks: torch.Tensor) -> None:
        for layer in self.layers:
            layer.index_fill_(0, blocks, 0.0)
