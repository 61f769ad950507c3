"""A decoder over one whole prompt, with attention written out plainly, and no engine around it."""

from __future__ import annotations

import torch

from benchmarks.torch_model.decoder import TorchDecoder
from python_backend.engine.models.decoder import DecoderShape, DecoderWeights


class DenseAttention:
    """Every row looks at all before it, as far as its layer's window reaches."""

    def __init__(self, shape: DecoderShape) -> None:
        self._shape = shape

    def __call__(self, layer: int, queries: torch.Tensor, keys_values: torch.Tensor) -> torch.Tensor:
        shape, rows = self._shape, len(queries)
        keys, values = keys_values.reshape(rows, 2, shape.kv_heads, shape.head_dim).unbind(1)
        group = shape.heads // shape.kv_heads
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", queries, keys) * shape.query_scale
        if shape.attention_softcap is not None:
            scores = torch.tanh(scores / shape.attention_softcap) * shape.attention_softcap
        back = torch.arange(rows)[:, None] - torch.arange(rows)
        window = shape.windows[layer] or rows
        scores = scores.masked_fill((back < 0) | (back >= window), -torch.inf)
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).reshape(rows, -1)


@torch.inference_mode()
def dense_logits(weights: DecoderWeights, token_ids: list[int]) -> torch.Tensor:
    """(tokens, vocabulary)."""
    every_row = torch.arange(len(token_ids))
    return TorchDecoder(weights).forward(
        torch.tensor(token_ids), every_row, DenseAttention(weights.shape), every_row
    )
