"""Runs a step's chunks through a torch model and chooses the next tokens."""

from __future__ import annotations

from collections.abc import Sequence as Row
from typing import TYPE_CHECKING

import torch

from python_backend.engine.attention import StepAttention, segment_key
from python_backend.engine.sampling import choose_tokens

if TYPE_CHECKING:
    from python_backend.engine.kv_cache import KvCache
    from python_backend.engine.models.model import Model
    from python_backend.engine.scheduling.plan import Chunk


class TorchExecutor:
    def __init__(self, model: Model, cache: KvCache) -> None:
        self._model = model
        self._cache = cache

    @torch.inference_mode()
    def execute(self, chunks: Row[Chunk]) -> list[int | None]:
        ordered = sorted(chunks, key=lambda chunk: segment_key(chunk, self._cache.tokens_per_block))
        yielding = [chunk.sequence for chunk in ordered if chunk.yields_token]
        chosen = dict(zip(yielding, choose_tokens(self._forward(ordered), yielding), strict=True))
        return [chosen[chunk.sequence] for chunk in chunks if chunk.yields_token]

    def _forward(self, chunks: Row[Chunk]) -> torch.Tensor:
        token_ids: list[int] = []
        positions: list[int] = []
        wanted_rows: list[int] = []
        for chunk in chunks:
            token_ids += chunk.token_ids
            positions += range(chunk.start, chunk.end)
            if chunk.yields_token:
                wanted_rows.append(len(token_ids) - 1)
        return self._model.forward(
            torch.tensor(token_ids),
            torch.tensor(positions),
            StepAttention(self._cache, chunks, self._model.limits.query_heads),
            torch.tensor(wanted_rows, dtype=torch.long),
        )
