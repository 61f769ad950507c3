"""Where keys and values live on the GPU: a tensor of blocks for each layer."""

from __future__ import annotations

from collections.abc import Sequence as Row
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from python_backend.engine.cuda.pinned_memory import Staging
    from python_backend.engine.kv.blocks import BlockCopy
    from python_backend.engine.models.decoder import DecoderShape


class KvCache:
    """`keys[i]` and `values[i]` are (blocks, kv_heads, tokens_per_block, head_dim).

    There is one block more than the pool knows: rows that only fill up a batch write there (`scratch_block`).
    """

    def __init__(
        self,
        shape: DecoderShape,
        total_blocks: int,
        tokens_per_block: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.tokens_per_block = tokens_per_block
        self.scratch_block = total_blocks
        size = (total_blocks + 1, shape.kv_heads, tokens_per_block, shape.head_dim)
        # Zeros, because a masked tile still multiplies what it loaded, and nothing times NaN is NaN.
        self.keys = [torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.layers)]
        self.values = [torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.layers)]

    def copy(self, copies: Row[BlockCopy], staging: Staging) -> None:
        if not copies:
            return
        sources = staging.upload(np.array([copy.source for copy in copies]))
        targets = staging.upload(np.array([copy.target for copy in copies]))
        for layer in (*self.keys, *self.values):
            layer.index_copy_(0, targets, layer.index_select(0, sources))


def kv_bytes_per_block(shape: DecoderShape, tokens_per_block: int, dtype: torch.dtype) -> int:
    return 2 * shape.layers * shape.kv_heads * tokens_per_block * shape.head_dim * dtype.itemsize
