"""Where keys and values live: one tensor of blocks for each layer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from python_backend.engine.kv.table import BlockCopy
    from python_backend.engine.models.decoder import DecoderShape


class KvCache:
    """`layers[i]` is (blocks, slots, floats); a slot holds one token's keys, then its values, head by head.

    Keys and values share a row so that one index, made once a step, writes or reads both in every layer.
    """

    def __init__(self, shape: DecoderShape, total_blocks: int, tokens_per_block: int) -> None:
        self.tokens_per_block = tokens_per_block
        self._heads = (2, shape.kv_heads, shape.head_dim)
        floats = 2 * shape.kv_heads * shape.head_dim
        self.layers = [torch.zeros(total_blocks, tokens_per_block, floats) for _ in range(shape.layers)]
        self._slots = [layer.view(-1, floats) for layer in self.layers]

    def write(self, layer: int, slots: torch.Tensor, rows: torch.Tensor) -> None:
        self._slots[layer].index_copy_(0, slots, rows)

    def read(self, layer: int, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of (sequences, blocks) as (sequences, kv_heads, tokens, head_dim) each."""
        sequences, width = blocks.shape
        rows = self.layers[layer].index_select(0, blocks.view(-1))
        heads = rows.view(sequences, width * self.tokens_per_block, *self._heads)
        keys, values = heads.unbind(2)
        return keys.transpose(1, 2), values.transpose(1, 2)

    def clear(self, blocks: torch.Tensor) -> None:
        for layer in self.layers:
            layer.index_fill_(0, blocks, 0.0)

    def copy(self, copies: Iterable[BlockCopy]) -> None:
        for copy in copies:
            for layer in self.layers:
                layer[copy.target] = layer[copy.source]
