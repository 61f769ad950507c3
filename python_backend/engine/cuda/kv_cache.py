"""Where keys and values live on the GPU: tensors of blocks, one for each layer that a block has."""

from __future__ import annotations

from collections.abc import Sequence as Row
from typing import TYPE_CHECKING

import numpy as np
import torch

from python_backend.engine.kv.layout import one_table

if TYPE_CHECKING:
    from python_backend.engine.cuda.pinned_memory import Staging
    from python_backend.engine.kv.layout import KvLayout
    from python_backend.engine.kv.table import BlockCopy
    from python_backend.engine.models.decoder import DecoderShape


class KvCache:
    """`keys[i]` and `values[i]` of layer i are (blocks, kv_heads, tokens_per_block, head_dim).

    Layers whose blocks come from different tables may share them: layer i's table is `tables[i]`.
    There is one block more than the pool knows: rows that only fill up a batch write there (`scratch_block`).
    """

    def __init__(
        self,
        shape: DecoderShape,
        total_blocks: int,
        tokens_per_block: int,
        dtype: torch.dtype,
        device: torch.device,
        layout: KvLayout | None = None,
    ) -> None:
        layout = layout or one_table(shape.layers)
        self.tokens_per_block = tokens_per_block
        self.scratch_block = total_blocks
        size = (total_blocks + 1, shape.kv_heads, tokens_per_block, shape.head_dim)
        # Zeros, because a masked tile still multiplies what it loaded, and nothing times NaN is NaN.
        # fp8 as bytes, because not all that copies blocks knows it.
        stored = torch.uint8 if dtype.itemsize == 1 else dtype
        self.parts = tuple(
            torch.zeros(size, dtype=stored, device=device) for _ in range(2 * layout.block_layers)
        )
        views = [part.view(dtype) for part in self.parts]
        self.keys = [views[slot] for slot in layout.slots]
        self.values = [views[layout.block_layers + slot] for slot in layout.slots]
        self.tables = layout.tables

    def copy(self, copies: Row[BlockCopy], staging: Staging) -> None:
        if not copies:
            return
        sources = staging.upload(np.array([copy.source for copy in copies]))
        targets = staging.upload(np.array([copy.target for copy in copies]))
        for part in self.parts:
            part.index_copy_(0, targets, part.index_select(0, sources))


def kv_bytes_per_block(shape: DecoderShape, layers: int, tokens_per_block: int, dtype: torch.dtype) -> int:
    return 2 * layers * shape.kv_heads * tokens_per_block * shape.head_dim * dtype.itemsize
