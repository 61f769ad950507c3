"""A decoder in torch with its cache: chunks in, logits out."""

from __future__ import annotations

from collections.abc import Sequence as Row
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.torch_model.attention import StepAttention, segment_key
from benchmarks.torch_model.decoder import TorchDecoder
from benchmarks.torch_model.kv_cache import KvCache

if TYPE_CHECKING:
    from python_backend.engine.kv.table import BlockCopy
    from python_backend.engine.models.decoder import DecoderWeights
    from python_backend.engine.scheduling.plan import Chunk


class TorchModel:
    def __init__(
        self, weights: DecoderWeights, total_blocks: int, tokens_per_block: int, threads: int | None
    ) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self._decoder = TorchDecoder(weights)
        self._cache = KvCache(weights.shape, total_blocks, tokens_per_block)

    @torch.inference_mode()
    def forward(
        self, chunks: Row[Chunk], copies: Row[BlockCopy], wanted_rows: Row[int]
    ) -> NDArray[np.float32]:
        self._cache.copy(copies)
        # Attention wants chunks of one kind side by side; rows keep the numbers they came with.
        size = self._cache.tokens_per_block
        order = sorted(range(len(chunks)), key=lambda index: segment_key(chunks[index], size))
        first_rows = np.cumsum([0, *(chunk.count for chunk in chunks)])
        place: dict[int, int] = {}
        token_ids: list[int] = []
        positions: list[int] = []
        for index in order:
            chunk = chunks[index]
            for offset in range(chunk.count):
                place[int(first_rows[index]) + offset] = len(token_ids) + offset
            token_ids += chunk.token_ids
            positions += range(chunk.start, chunk.end)
        logits: NDArray[np.float32] = self._decoder.forward(
            torch.tensor(token_ids),
            torch.tensor(positions),
            StepAttention(self._cache, [chunks[index] for index in order], self._decoder.shape),
            torch.tensor([place[row] for row in wanted_rows], dtype=torch.long),
        ).numpy()
        return logits
