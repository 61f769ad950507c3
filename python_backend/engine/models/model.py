"""What the engine asks of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from python_backend.engine.models.decoder import DecoderShape


class Attention(Protocol):
    """Knows which row of the batch belongs to which sequence, and how each layer looks back."""

    def __call__(self, layer: int, queries: torch.Tensor, keys_values: torch.Tensor) -> torch.Tensor:
        """From (rows, query_heads, head_dim) and rows of keys, then values, to (rows, heads side by side)."""


class Model(Protocol):
    @property
    def shape(self) -> DecoderShape: ...

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: Attention,
        wanted_rows: torch.Tensor,
    ) -> torch.Tensor:
        """One pass over a flat batch of tokens from many sequences; the logits of the wanted rows alone.

        `attention` is called once for each layer with that layer's queries, keys and values; it knows which
        row belongs to which sequence, and the model does not.
        """
