"""A decoder over one whole prompt, with attention written out plainly, and no engine around it."""

from __future__ import annotations

import torch

from benchmarks.torch_model.decoder import TorchDecoder
from python_backend.engine.models.decoder import DecoderWeights


class DenseAttention:
    """Every row looks at all before it, as far as its layer's window reaches."""

    def __init__(self, weights: DecoderWeights) -> None:
        self._shape = weights.shape
        self._sinks = [weights.layer(index).sinks for index in range(weights.shape.layers)]

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
        if (sinks := self._sinks[layer]) is not None:
            beside = torch.from_numpy(sinks)[:, None, None].expand(-1, rows, 1)
            shares = torch.cat([scores, beside], -1).softmax(-1)[..., :-1]
        else:
            shares = scores.softmax(-1)
        return torch.einsum("hqk,khd->qhd", shares, values).reshape(rows, -1)


@torch.inference_mode()
def dense_logits(weights: DecoderWeights, token_ids: list[int]) -> torch.Tensor:
    """(tokens, vocabulary)."""
    every_row = torch.arange(len(token_ids))
    return TorchDecoder(weights).forward(
        torch.tensor(token_ids), every_row, DenseAttention(weights), every_row
    )
